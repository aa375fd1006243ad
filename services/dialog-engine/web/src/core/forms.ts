/**
 * The form of a server's question: its fields, what is wrong with what was written, and what is sent. The engine decides;
 * these rules are its own (`tool_calls/questions/rules.py`), so that a person learns of a mistake at its field at once.
 */

import { visible } from "./calls";

type Kind = "text" | "email" | "uri" | "date" | "date-time" | "number" | "integer" | "boolean" | "one" | "several";
export type Written = string | boolean | string[];

/** A field as it is drawn; its texts are the server's, without what cannot be seen, and cut. */
export interface Field {
  name: string;
  kind: Kind;
  label: string;
  description: string;
  required: boolean;
  /** Of a choice. */
  options: { value: string; label: string }[];
  /** Of characters, of a number, or of how many are chosen. */
  least: number | undefined;
  most: number | undefined;
  /** What is in it at first, and is sent where it is left empty; null without a default. */
  initial: Written | null;
}

/** What is written, by the name of the field. */
export type Values = Record<string, Written>;

// eslint-disable-next-line @typescript-eslint/no-explicit-any -- JSON of a server
type Json = any;

const [MOST_LABEL, MOST_DESCRIPTION, MOST_TEXT] = [200, 1_000, 10_000];
const SECRET_WORDS = ["password", "passwd", "passphrase", "passcode", "secret", "apikey", "accesskey", "privatekey", "accesstoken", "authtoken", "refreshtoken", "bearertoken", "credential", "creditcard", "cardnumber", "cvv", "cvc"];
const SECRET_NAMES = ["pin", "otp", "token", "ssn"];

const cut = (text: unknown, most: number): string => visible(String(text ?? "").slice(0, most));

/** The fields of a flat JSON schema. */
export function fieldsOf({ properties = {}, required = [] }: Json): Field[] {
  return Object.entries<Json>(properties).map(([name, schema]) => {
    const kind = kindOf(schema);
    const [least, most] = boundsOf(kind, schema);
    return {
      name,
      kind,
      label: cut(schema.title || name, MOST_LABEL),
      description: cut(schema.description, MOST_DESCRIPTION),
      required: required.includes(name),
      options: optionsOf(kind === "several" ? (schema.items ?? {}) : schema),
      least,
      most,
      initial: schema.default === undefined ? null : writtenOf(kind, schema.default),
    };
  });
}

function kindOf({ type, format, enum: listed, oneOf }: Json): Kind {
  if (type === "array") return "several";
  if (type !== "string") return ["number", "integer", "boolean"].includes(type) ? type : "text";
  if (listed ?? oneOf) return "one";
  return ["email", "uri", "date", "date-time"].includes(format) ? format : "text";
}

function boundsOf(kind: Kind, schema: Json): [number | undefined, number | undefined] {
  if (kind === "several") return [schema.minItems, schema.maxItems];
  if (kind === "number" || kind === "integer") return [schema.minimum, schema.maximum];
  return [schema.minLength, Math.min(schema.maxLength ?? MOST_TEXT, MOST_TEXT)];
}

function optionsOf({ enum: listed, enumNames = [], oneOf, anyOf = [] }: Json): Field["options"] {
  const titled = (oneOf ?? anyOf).map(({ const: value, title }: Json) => [value, title]);
  const named = listed ? listed.map((value: unknown, at: number) => [value, enumNames[at]]) : titled;
  return named.map(([value, title]: [string, string?]) => ({ value, label: cut(title || value, MOST_LABEL) }));
}

/** A value of JSON as it is written in its field. */
function writtenOf(kind: Kind, value: Json): Written {
  if (kind === "boolean") return value === true;
  if (kind === "several") return Array.isArray(value) ? value.map(String) : [];
  return kind === "date-time" ? localTime(String(value)) : String(value);
}

/** As a field for a date and a time has it: in the zone of this machine, without naming it. */
function localTime(moment: string): string {
  const date = new Date(moment);
  if (Number.isNaN(date.getTime())) return "";
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

export const emptyOf = ({ kind, initial }: Field): Written =>
  initial ?? (kind === "boolean" ? false : kind === "several" ? [] : "");

/** Whether nothing is written in it; a field of yes or no always says one of them. */
export const isEmpty = (value: Written): boolean => value !== false && value !== true && value.length === 0;

const EMAIL = /^[^@\s]{1,64}@[^@\s.]+(\.[^@\s.]+)*$/;
const ADDRESS = /^[a-z][a-z0-9+.-]*:\S+$/i;

/** What is wrong with what is written in a field, in words; empty when it fits. */
export function problemOf(field: Field, value: Written): string {
  const { kind, required, initial } = field;
  if (isEmpty(value) && kind !== "several") return required && initial === null ? "This is needed." : "";
  switch (kind) {
    case "text":
      return countProblem(field, [...String(value)].length, "characters");
    case "email":
      if (!EMAIL.test(String(value).trim())) return "Write an email address, like ann@example.com.";
      return countProblem(field, String(value).trim().length, "characters");
    case "uri":
      if (!ADDRESS.test(String(value).trim())) return "Write an address with its beginning, like https://example.com.";
      return countProblem(field, String(value).trim().length, "characters");
    case "date":
    case "date-time":
      return Number.isNaN(Date.parse(String(value))) ? "Write a whole date." : "";
    case "number":
    case "integer":
      return numberProblem(field, Number(value));
    case "several":
      return isEmpty(value) && !required ? "" : countProblem(field, (value as string[]).length, "choices");
    default:
      return "";
  }
}

function numberProblem(field: Field, value: number): string {
  if (!Number.isFinite(value)) return "Write a number, like 12 or 1.5.";
  if (field.kind === "integer" && !Number.isInteger(value)) return "Write a whole number.";
  return countProblem(field, value, "");
}

function countProblem({ least = -Infinity, most = Infinity }: Field, count: number, what: string): string {
  if (count >= least && count <= most) return "";
  const range = least === -Infinity ? `at most ${most}` : most === Infinity ? `at least ${least}` : `${least} to ${most}`;
  return what ? `${range.charAt(0).toUpperCase()}${range.slice(1)} ${what}; here are ${count}.` : `Write a number: ${range}.`;
}

/** What is sent: fields that were left empty are left out, and get their defaults, but a text may be emptied. */
export function contentOf(fields: Field[], values: Values): Record<string, unknown> {
  return Object.fromEntries(
    fields.flatMap((field) => {
      const value = values[field.name] ?? emptyOf(field);
      const cleared = isEmpty(value) && (field.initial === null ? !(field.kind === "several" && field.required) : !["text", "several"].includes(field.kind));
      return cleared ? [] : [[field.name, sentOf(field.kind, value)]];
    }),
  );
}

function sentOf(kind: Kind, value: Written): unknown {
  if (kind === "number" || kind === "integer") return Number(value);
  if (kind === "date-time") return new Date(String(value)).toISOString();
  return kind === "email" || kind === "uri" ? String(value).trim() : value;
}

/** Whether a field seems to ask for a secret, which the engine refuses to ask for, and which is kept nowhere here. */
export function looksSecret({ name, label }: Field): boolean {
  const words = [name, label].map((each) => each.replace(/[\s_.-]+/g, "").toLowerCase());
  return words.some((each) => SECRET_NAMES.includes(each) || SECRET_WORDS.some((secret) => each.includes(secret)));
}

/** What was answered, as it is read again: the label of each field, and what was sent in it. */
export function answeredOf(schema: Json, content: Record<string, unknown>): [label: string, value: string][] {
  return fieldsOf(schema).flatMap(({ name, label, options }) => {
    const value = content[name];
    if (value === undefined) return [];
    const said = (Array.isArray(value) ? value : [value]).map((each) =>
      each === true ? "yes" : each === false ? "no" : (options.find((option) => option.value === each)?.label ?? visible(String(each))),
    );
    return [[label, said.join(", ") || "–"]];
  });
}

/** The address that a server asks to open, as the browser reads it, which may be otherwise than the engine; null: no web address. */
export function addressOf(url: string): URL | null {
  const read = URL.canParse(url) ? new URL(url) : null;
  return read && ["https:", "http:"].includes(read.protocol) && !read.username && !read.password ? read : null;
}
