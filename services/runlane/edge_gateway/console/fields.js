/** Fields in the shape of a JSON Schema. Each keeps what was typed as a draft, unless it is a secret. */

import { drafts } from "./drafts.js";
import { h } from "./dom.js";
import { parseJson, prettyJson } from "./json.js";
import { inertString, inline } from "./text.js";

const MAX_FIELDS = 24;
const MAX_DEPTH = 3;

/**
 * `{element, read}` for a schema: `read()` gives `{value}`, `{nothing: true}` where an optional field was left empty, or
 * `{error}`. `draft` is the name its text is kept under.
 */
export function fieldFor(schema, { label = "Answer", draft, isRequired = true, isWhole = false, depth = 0 }) {
  const place = { name: inertString(schema.title ?? label, 80), hint: schema.description, draft, isRequired, isWhole, depth };
  if ("const" in schema) return { element: labelled(place, h("code", {}, inline(schema.const))), read: () => ({ value: schema.const }) };
  if (Array.isArray(schema.enum)) return choiceField(schema.enum, schema, place);
  if (schema.type === "boolean") return choiceField([true, false], schema, place);
  if (schema.type === "number" || schema.type === "integer") return numberField(schema, place);
  if (schema.type === "object" && isSimple(schema.properties) && depth < MAX_DEPTH) return objectField(schema, place);
  if (schema.type === "array" && Array.isArray(schema.items?.enum)) return severalField(schema, place);
  if (schema.type === "array" && schema.items?.type === "string") return linesField(schema, place);
  if (schema.type === "string") return stringField(schema, place);
  return jsonField(schema, place);
}

/** Read a text as JSON: `{value}` or `{error}`. */
export function readJson(text) {
  try {
    return { value: parseJson(text) };
  } catch (error) {
    return { error: `This is not JSON: ${error.message}` };
  }
}

function isSimple(properties) {
  const all = Object.values(properties ?? {});
  return all.length > 0 && all.length <= MAX_FIELDS && all.every((one) => one !== null && typeof one === "object");
}

function labelled({ name, hint, isRequired, isWhole }, control) {
  return h("label.field", {},
    h("span.field-name", {}, name, isRequired || isWhole ? null : h("span.faint", {}, " optional")), control, hint ? h("span.faint.hint", {}, inline(hint, 300)) : null);
}

function empty({ name, isRequired }) {
  return isRequired ? { error: `${name}: needed` } : { nothing: true };
}

function choiceField(values, schema, place) {
  const say = (value) => inertString(typeof value === "string" ? value : prettyJson(value));
  const start = values.findIndex((value) => value === schema.default);
  const select = h("select", {},
    place.isRequired && start >= 0 ? null : h("option", { value: "" }, place.isRequired ? "choose…" : "—"),
    values.map((value, index) => h("option", { value: String(index) }, say(value))));
  select.value = start < 0 ? "" : String(start);
  drafts.bind(place.draft, select);
  return { element: labelled(place, select), read: () => (select.value === "" ? empty(place) : { value: values[Number(select.value)] }) };
}

function numberField(schema, place) {
  const control = h("input", {
    type: "number", inputmode: "decimal", step: schema.type === "integer" ? "1" : "any", min: schema.minimum, max: schema.maximum, value: schema.default ?? "",
  });
  drafts.bind(place.draft, control);
  const read = () => {
    if (control.validity.badInput || !control.checkValidity()) return { error: `${place.name}: ${control.validationMessage}` };
    return control.value === "" ? empty(place) : { value: Number(control.value) };
  };
  return { element: labelled(place, control), read };
}

function stringField(schema, place) {
  const isSecret = schema.writeOnly === true || schema.format === "password";
  const value = typeof schema.default === "string" ? schema.default : "";
  const limits = { minlength: schema.minLength, maxlength: schema.maxLength };
  const isLong = place.isWhole || schema.format === "textarea" || (schema.maxLength ?? 0) > 200;
  const control = isSecret
    ? h("input", { type: "password", autocomplete: "off", ...limits })
    : isLong ? h("textarea", { rows: 2, value, ...limits }) : h("input", { type: TYPES[schema.format] ?? "text", autocomplete: "off", value, ...limits });
  if (!isSecret) drafts.bind(place.draft, control);
  const read = () => {
    if (control.value === "") return place.isRequired && !place.isWhole && (schema.minLength ?? 0) > 0 ? empty(place) : place.isRequired ? { value: "" } : { nothing: true };
    return control.checkValidity() ? { value: control.value } : { error: `${place.name}: ${control.validationMessage}` };
  };
  return { element: labelled(place, control), read };
}

const TYPES = { email: "email", uri: "url", date: "date" };

function severalField(schema, place) {
  const values = schema.items.enum;
  const boxes = values.map((value) => h("input", { type: "checkbox", checked: Array.isArray(schema.default) && schema.default.includes(value) }));
  const element = h("fieldset.field", {}, h("legend.field-name", {}, place.name),
    values.map((value, index) => h("label.check", {}, boxes[index], " ", inline(value, 80))));
  return { element, read: () => ({ value: values.filter((_, index) => boxes[index].checked) }) };
}

function linesField(schema, place) {
  const control = h("textarea", { rows: 3, placeholder: "one a line", value: Array.isArray(schema.default) ? schema.default.join("\n") : "" });
  drafts.bind(place.draft, control);
  const read = () => {
    const lines = control.value.split("\n").map((line) => line.trim()).filter(Boolean);
    return lines.length === 0 && !place.isRequired ? { nothing: true } : { value: lines };
  };
  return { element: labelled(place, control), read };
}

function jsonField(schema, place) {
  const control = h("textarea.code", { rows: 4, spellcheck: "false", value: schema.default === undefined ? "" : prettyJson(schema.default) });
  drafts.bind(place.draft, control);
  const read = () => (control.value.trim() === "" && !place.isRequired ? { nothing: true } : readJson(control.value));
  return { element: labelled({ ...place, name: `${place.name}, as JSON` }, control), read };
}

function objectField(schema, place) {
  const required = new Set(schema.required ?? []);
  const fields = Object.entries(schema.properties).map(([key, one]) =>
    [key, fieldFor(one, { label: key, draft: `${place.draft}/${key}`, isRequired: required.has(key), depth: place.depth + 1 })]);
  const inside = fields.map(([, field]) => field.element);
  return {
    element: place.depth === 0 ? h("div.fields", {}, inside) : h("fieldset.field", {}, h("legend.field-name", {}, place.name), h("div.fields", {}, inside)),
    read() {
      const value = Object.create(null);
      for (const [key, field] of fields) {
        const given = field.read();
        if (given.error !== undefined) return given;
        if (given.nothing !== true) value[key] = given.value;
      }
      return place.depth > 0 && !place.isRequired && Object.keys(value).length === 0 ? { nothing: true } : { value };
    },
  };
}
