// Calls to the server. A key is asked for when the server wants one, and kept for this tab.

const KEY = "strop-key";

export class Failed extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function call(path, body, signal) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const reply = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers: {
        ...(body === undefined ? {} : { "content-type": "application/json" }),
        ...(key ? { authorization: `Bearer ${key}` } : {}),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
    const value = await reply.json();
    if (reply.ok) return value;
    if (reply.status !== 401) throw new Failed(reply.status, value.error.message);
    await askForKey();
  }
}

let asking = null;

function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("ask");
    const input = document.getElementById("key");
    input.value = "";
    dialog.addEventListener("close", () => {
      sessionStorage.setItem(KEY, input.value.trim());
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

/** Read little-endian float32 values from base64. */
export function floats(text) {
  const raw = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Float32Array(raw.buffer);
}
