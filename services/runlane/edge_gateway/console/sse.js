/**
 * Server-sent events, as text arrives: any chunking, any line ending.
 *
 * Unlike `EventSource`, a frame keeps only its own `id`, and comments are told: they prove the connection.
 */

const MAX_FRAME_CHARS = 64 * 1024 * 1024;

/** A frame grew beyond what the page is willing to hold. */
export class FrameTooLarge extends Error {
  constructor() {
    super(`a frame is larger than ${MAX_FRAME_CHARS} characters`);
    this.name = "FrameTooLarge";
  }
}

export class SseParser {
  #line = []; // pieces of the line that is not complete
  #size = 0;
  #afterCarriageReturn = false;
  #event = "";
  #id = null;
  #data = [];

  /** Take the next piece of text; return the frames that it completed: `{event, id, data}` or `{comment}`. */
  push(text) {
    const frames = [];
    let from = 0;
    if (this.#afterCarriageReturn && text !== "") {
      if (text[0] === "\n") from = 1;
      this.#afterCarriageReturn = false;
    }
    const ending = /\r\n|\r|\n/g;
    ending.lastIndex = from;
    for (let found = ending.exec(text); found !== null; found = ending.exec(text)) {
      this.#line.push(text.slice(from, found.index));
      from = ending.lastIndex;
      this.#afterCarriageReturn = found[0] === "\r" && from === text.length;
      const line = this.#line.length === 1 ? this.#line[0] : this.#line.join("");
      this.#line = [];
      this.#take(line, frames);
    }
    if (from < text.length) this.#keep(text.slice(from));
    return frames;
  }

  #keep(piece) {
    this.#line.push(piece);
    this.#size += piece.length;
    if (this.#size > MAX_FRAME_CHARS) throw new FrameTooLarge();
  }

  #take(line, frames) {
    if (line === "") {
      if (this.#data.length > 0) {
        frames.push({ event: this.#event || "message", id: this.#id, data: this.#data.join("\n") });
      }
      this.#event = "";
      this.#id = null;
      this.#data = [];
      this.#size = 0;
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) {
      frames.push({ comment: line.slice(1).trim() });
      return;
    }
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#event = value;
    else if (name === "id" && !value.includes("\0")) this.#id = value;
  }
}
