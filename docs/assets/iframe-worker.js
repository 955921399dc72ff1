/* Run the worker of the search in a hidden frame if the page is a file: browsers start no worker there. */
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      address = new URL(address, document.baseURI);
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside.importScripts = (...scripts) => Promise.all(scripts.map((script) => this.load(script, address)));
      this.ready = this.load(address);
    }

    load(script, base) {
      return new Promise((resolve, reject) => {
        const element = this.inside.document.createElement("script");
        Object.assign(element, { async: false, src: new URL(script, base), onload: resolve, onerror: reject });
        this.inside.document.documentElement.append(element);
      });
    }

    async postMessage(data) {
      await this.ready;
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }
  };
