// The error for bytes that a receiver refuses.

export class WireError extends Error {
  // `status` is the gRPC status of the page: INVALID_ARGUMENT, or DATA_LOSS where sending the same
  // bytes again can help.
  constructor(message, status = "INVALID_ARGUMENT") {
    super(message);
    this.name = "WireError";
    this.status = status;
  }
}

export function demand(condition, message, status) {
  if (!condition) throw new WireError(message, status);
}
