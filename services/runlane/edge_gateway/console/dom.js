/** Elements without markup: data only ever becomes text nodes and attributes, never HTML. */

const LISTENER = /^on[A-Z]/;
const SVG = "http://www.w3.org/2000/svg";

/**
 * `h("button.primary", { type: "button", onClick: f }, "Approve")`. Properties that are null or false are left
 * out; children that are null or false too.
 */
export function h(name, properties = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length > 0) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) set(element, key, value);
  element.append(...present(children));
  return element;
}

/** The children that are there, flat. */
export function present(children) {
  return children.flat(3).filter((child) => child !== null && child !== undefined && child !== false);
}

/** The same for a picture drawn in place. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function set(element, key, value) {
  if (LISTENER.test(key)) element.addEventListener(key.slice(2).toLowerCase(), value);
  else if (key === "value" || key === "checked") element[key] = value;
  else attribute(element, key, value);
}

/** Set an attribute, or take it away for null, undefined and false. */
export function attribute(element, key, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(key);
  else {
    const text = value === true ? "" : String(value);
    if (element.getAttribute(key) !== text) element.setAttribute(key, text);
  }
}

/** Make the text of an element this, touching the page only when it differs. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Bring the children of `parent` into this order with the fewest moves; others are taken out. */
export function arrange(parent, children) {
  const wanted = new Set(children);
  for (const child of Array.from(parent.children)) if (!wanted.has(child)) child.remove();
  let at = parent.firstElementChild;
  for (const child of children) {
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
  }
}

/** A button that puts a text on the clipboard and says so. */
export function copyButton(text, what) {
  const button = h("button.copy", { type: "button", "aria-label": `Copy ${what}`, title: `Copy ${what}` }, "copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      setText(button, "copied");
    } catch {
      setText(button, "select it by hand");
    }
    setTimeout(() => setText(button, "copy"), 1500);
  });
  return button;
}
