// Names of the ports of CANN's built-in operators that the plugin has no prototypes of, as graphengine's public headers have
// them (third_party/fwkacllib/inc/op_proto): the operators that the training of a transformer needs.
#include <iterator>
#include <sstream>

#include "objects.h"

namespace ge {
namespace {

struct Row {
  const char *inputs, *outputs, *types;
};
// Ports that may be several are not named: MindSpore says how many there are.
constexpr Row kRows[] = {
  {"", "", "HcomBroadcast IdentityN NPUClearFloatStatusV2 NoOp PartitionedCall"},
  {"", "y", "HcomReceive"},
  {"", "data", "NPUGetFloatStatusV2"},
  {"", "y", "AddN ConcatD ConcatV2D Const Constant Pack"},
  {"concat_dim", "y", "Concat ConcatV2"},
  {"logits", "logsoftmax", "LogSoftmaxV2"},
  {"x", "", "HcomSend SplitD Unpack"},
  {"x", "y",
     "Abs BiasAddGrad Cast Cos Data Erf Exp Floor Gelu HcomAllGather HcomAllReduce HcomReduceScatter Identity "
     "IsFinite Log LogicalNot Neg OnesLike Reciprocal ReduceMaxD ReduceMeanD ReduceSumD RefData Relu Rsqrt Sigmoid "
     "Sign Sin SliceD SoftmaxV2 Sqrt Square SquareSumV1 Squeeze Swish Tanh TensorMove TransposeD Tril Triu "
     "ZerosLike"},
  {"features labels", "loss backprop", "SoftmaxCrossEntropyWithLogits"},
  {"grad x", "y", "LogSoftmaxGrad"},
  {"gradients features", "backprops", "ReluGrad"},
  {"ref value", "ref", "Assign AssignAdd"},
  {"shape prob", "y", "DropOutGenMask DropOutGenMaskV3"},
  {"split_dim x", "", "Split"},
  {"var value", "var", "AssignSub"},
  {"x axes", "y", "ReduceAll ReduceAny ReduceMax ReduceMean ReduceMin ReduceSum"},
  {"x axis", "y", "Cumsum ExpandDims"},
  {"x bias", "y", "BiasAdd"},
  {"x dimension", "y", "ArgMaxV2"},
  {"x index", "y", "GatherElements"},
  {"x indices", "y", "GatherNd"},
  {"x multiples", "y", "Tile"},
  {"x paddings", "y", "Pad"},
  {"x perm", "y", "Transpose"},
  {"x shape", "y", "BroadcastTo Reshape"},
  {"x1 x2", "y",
     "Add BatchMatMul BitwiseAnd Div Equal FloorDiv FloorMod Greater GreaterEqual Less LessEqual LogicalAnd "
     "LogicalOr Maximum Minimum Mul NotEqual Pow RealDiv Sub"},
  {"y dy", "z", "RsqrtGrad SigmoidGrad SqrtGrad TanhGrad"},
  {"condition x1 x2", "y", "Select"},
  {"dy x y", "z", "GeluGrad"},
  {"var indices updates", "var", "ScatterNdUpdate ScatterUpdate"},
  {"x clip_value_min clip_value_max", "y", "ClipByValue"},
  {"x dim index", "y", "GatherD"},
  {"x gamma beta", "y mean variance", "LayerNorm"},
  {"x indices axis", "y", "GatherV2"},
  {"x indices updates", "y", "TensorScatterUpdate"},
  {"x mask keep_prob", "y", "DropOutDoMask"},
  {"x mask value", "y", "MaskedFill"},
  {"x offsets size", "y", "Slice"},
  {"x segment_ids num_segments", "y", "UnsortedSegmentSum"},
  {"x size_splits split_dim", "", "SplitV"},
  {"x1 x2 bias", "y", "MatMul"},
  {"x begin end strides", "y", "StridedSlice"},
  {"send_data send_counts send_displacements recv_counts recv_displacements", "recv_data", "HcomAllToAllV"},
  {"x depth on_value off_value", "y", "OneHot"},
  {"x1 x2 bias offset_w", "y", "BatchMatMulV2 MatMulV2"},
  {"dy x variance mean gamma", "pd_x pd_gamma pd_beta", "LayerNormGrad"},
  {"shape begin end strides dy", "output", "StridedSliceGrad"},
  {"var accum lr grad momentum", "var", "ApplyMomentum"},
  {"var accum lr grad momentum", "var accum", "ApplyMomentumD"},
  {"var m v beta1_power beta2_power lr beta1 beta2 epsilon grad", "var", "ApplyAdam"},
  {"var m v beta1_power beta2_power lr beta1 beta2 epsilon grad", "var m v", "ApplyAdamD"},
  {"input0 input1 input2 input3 input4 mul0_x mul1_x mul2_x mul3_x mul4_x add2_y", "input1 input2 input3",
     "AdamApplyOneWithDecayAssign"},
  {"parameters gradient learning_rate accum momentum stat", "parameters", "SGD"},
  {"cond", "", "If"},
};

std::vector<string> Words(const char *text) {
  std::istringstream stream(text);
  return {std::istream_iterator<string>(stream), {}};
}

std::map<string, Creator> BuiltIn() {
  std::map<string, Creator> creators;
  for (const Row &row : kRows) {
    const auto inputs = Words(row.inputs), outputs = Words(row.outputs);
    for (const auto &type : Words(row.types)) {
      creators[type] = [=](const string &name) {
        Operator created(name, type);
        created.node->inputs = inputs;
        created.node->outputs = outputs;
        return created;
      };
    }
  }
  return creators;
}

}  // namespace

std::map<string, Creator> &Creators() {
  static auto creators = new std::map<string, Creator>(BuiltIn());
  return *creators;
}

}  // namespace ge
