// Material's search reads a leading "-" as "without", so an option, typed as it is written, would find nothing.
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...others) {
  const isQuery = message && message.type === 2 && typeof message.data === "string";
  post.call(this, isQuery ? { ...message, data: message.data.replace(/(^|\s)-+(?=\w)/g, "$1") } : message, ...others);
};
