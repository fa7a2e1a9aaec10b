/* The search runs in a worker, and browsers start none for pages on the disk. There it
   runs in an empty frame instead, which the `offline` plugin would fetch a script for. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inner = frame.contentWindow
      inner.postMessage = data =>
        this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inner.document.createElement("script")
      script.src = url
      this.started = new Promise(done => script.onload = done)
      inner.document.body.append(script)
      this.inner = inner
    }
    async postMessage(data) {
      await this.started
      this.inner.dispatchEvent(new MessageEvent("message", { data }))
    }
  }
}
