// Definitions for the declarations of objects.h.
#include "objects.h"

#include <algorithm>
#include <set>

namespace ge {

std::map<string, Inference> &Inferences() {
  static auto inferences = new std::map<string, Inference>;
  return *inferences;
}

Link LinkTo(const Operator &from, const string &port) {
  if (!from.node) return {nullptr, 0};
  const auto &ports = from.node->outputs;
  const auto found = port.empty() ? ports.begin() : std::find(ports.begin(), ports.end(), port);
  return {from.node, static_cast<size_t>(found - ports.begin())};
}

std::vector<std::shared_ptr<Operation>> Layout::Nodes() const {
  std::vector<std::shared_ptr<Operation>> nodes;
  std::set<const Operation *> seen;
  std::function<void(const std::shared_ptr<Operation> &)> visit = [&](const std::shared_ptr<Operation> &node) {
    if (!node || !seen.insert(node.get()).second) return;
    for (const auto &[name, link] : node->links) visit(link.from);
    for (const auto &other : node->before) visit(other);
    nodes.push_back(node);
  };
  for (const auto &node : inputs) visit(node);
  for (const auto &link : outputs) visit(link.from);
  return nodes;
}

GNode::Other GNode::In(const std::shared_ptr<Operation> &node) const {
  auto found = std::make_shared<GNode>();
  found->at = std::make_shared<Position>(Position{node, at->graph});
  return found;
}
std::pair<GNode::Other, int32_t> GNode::GetInDataNodesAndPortIndexs(int32_t index) const {
  const auto link = at->node->links.find(at->node->inputs[static_cast<size_t>(index)]);
  if (link == at->node->links.end() || !link->second.from) return {nullptr, -1};
  return {In(link->second.from), static_cast<int32_t>(link->second.output)};
}
std::vector<std::pair<GNode::Other, int32_t>> GNode::GetOutDataNodesAndPortIndexs(int32_t index) const {
  std::vector<std::pair<Other, int32_t>> found;
  for (const auto &other : at->graph->Nodes()) {
    for (size_t i = 0; i < other->inputs.size(); ++i) {
      const auto link = other->links.find(other->inputs[i]);
      if (link == other->links.end() || link->second.from != at->node) continue;
      if (link->second.output == static_cast<size_t>(index)) found.emplace_back(In(other), static_cast<int32_t>(i));
    }
  }
  return found;
}
std::vector<GNode::Other> GNode::GetInControlNodes() const {
  std::vector<Other> found;
  for (const auto &other : at->node->before) found.push_back(In(other));
  return found;
}
std::vector<GNode::Other> GNode::GetOutControlNodes() const {
  std::vector<Other> found;
  for (const auto &other : at->graph->Nodes()) {
    const auto &before = other->before;
    if (std::find(before.begin(), before.end(), at->node) != before.end()) found.push_back(In(other));
  }
  return found;
}

graphStatus Graph::RemoveEdge(GNode &from, int32_t output, GNode &to, int32_t input) {
  Operation &node = *to.at->node;
  constexpr int32_t kControl = -1;
  if (output == kControl && input == kControl) {
    auto &before = node.before;
    before.erase(std::remove(before.begin(), before.end(), from.at->node), before.end());
  } else {
    node.links.erase(node.inputs[static_cast<size_t>(input)]);
  }
  return kOk;
}
graphStatus Graph::AddDataEdge(GNode &from, int32_t output, GNode &to, int32_t input) {
  Operation &node = *to.at->node;
  node.links[node.inputs[static_cast<size_t>(input)]] = {from.at->node, static_cast<size_t>(output)};
  return kOk;
}

}  // namespace ge
