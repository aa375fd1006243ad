/** Forms of servers: what fits, what is sent, and what a server could do with its texts. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { addressOf, answeredOf, contentOf, emptyOf, fieldsOf, looksSecret, problemOf, type Written } from "../src/core/forms";

const field = (schema: object, required = false) => {
  const [made] = fieldsOf({ properties: { f: schema }, ...(required && { required: ["f"] }) });
  assert.ok(made);
  return made;
};

test("a value fits, or its problem says what would", () => {
  const cases: [object, Written, boolean][] = [
    [{ type: "string", minLength: 2 }, "🙂", false],
    [{ type: "string", maxLength: 1 }, "🙂", true],
    [{ type: "string", format: "email" }, " ann@example.com ", true],
    [{ type: "string", format: "email" }, "ann@", false],
    [{ type: "string", format: "uri" }, "mailto:ann", true],
    [{ type: "string", format: "uri" }, "no address", false],
    [{ type: "string", format: "date" }, "2026-02-01", true],
    [{ type: "integer" }, "1.5", false],
    [{ type: "number" }, "1e400", false],
    [{ type: "number", minimum: -1, maximum: 0 }, "0", true],
    [{ type: "number", maximum: 0 }, "0.1", false],
    [{ type: "array", items: { enum: ["a"] }, minItems: 1 }, [], true],
    [{ type: "array", items: { anyOf: [{ const: "a", title: "A" }] }, maxItems: 0 }, ["a"], false],
    [{ type: "string" }, "", true],
  ];
  for (const [schema, value, fits] of cases) assert.equal(problemOf(field(schema), value) === "", fits, JSON.stringify([schema, value]));
  assert.notEqual(problemOf(field({ type: "array", items: { enum: ["a"] }, minItems: 1 }, true), []), "");
  assert.notEqual(problemOf(field({ type: "string" }, true), ""), "");
  assert.equal(problemOf(field({ type: "integer", default: 3 }, true), ""), "", "the engine fills it in");
});

test("what is left empty is left out, except a text that had a default", () => {
  const fields = fieldsOf({
    properties: {
      text: { type: "string", default: "x" },
      none: { type: "string" },
      number: { type: "number", default: 0 },
      yes: { type: "boolean" },
      several: { type: "array", items: { enum: ["a", "b"] } },
      constructor: { type: "string" },
    },
  });
  assert.deepEqual(contentOf(fields, Object.fromEntries(fields.map((each) => [each.name, emptyOf(each)]))), { text: "x", number: 0, yes: false });
  assert.deepEqual(contentOf(fields, { text: "", none: "", number: "", yes: true, several: [], constructor: "c" }), {
    ...{ text: "", yes: true, constructor: "c" },
  });
});

test("a moment is shown in the zone of this machine and sent with one", () => {
  const moment = field({ type: "string", format: "date-time", default: "2026-12-01T08:00:00Z" });
  assert.match(String(emptyOf(moment)), /^2026-\d\d-\d\dT\d\d:\d\d:00$/);
  assert.deepEqual(contentOf([moment], { f: emptyOf(moment) }), { f: "2026-12-01T08:00:00.000Z" });
});

test("an answer is read again by the labels of its fields", () => {
  const schema = { properties: { c: { title: "Class", type: "string", enum: ["f"], enumNames: ["First"] }, q: { type: "boolean" }, l: { type: "array", items: {} } } };
  assert.deepEqual(answeredOf(schema, { c: "f", q: false, l: [] }), [["Class", "First"], ["q", "no"], ["l", "–"]]);
});

test("texts of servers are cut, and what cannot be seen in them is shown", () => {
  const made = field({ type: "string", title: "a\u202eb", description: "x".repeat(5_000) });
  assert.equal(made.label, "a\\u202eb");
  assert.equal(made.description.length, 1_000);
});

test("what asks for a secret is not kept, and what only sounds so is", () => {
  const secret = (schema: object) => looksSecret(field(schema));
  assert.ok(secret({ type: "string", title: "API key" }));
  assert.ok(secret({ type: "string", title: "P-I-N" }));
  assert.ok(!secret({ type: "string", title: "Pinboard" }));
});

test("an address is opened as the browser reads it, and only one of the web", () => {
  assert.equal(addressOf("https://good.example\\@evil.example/")?.host, "good.example");
  assert.equal(addressOf("https://еxample.com/")?.host, "xn--xample-2of.com");
  for (const url of ["javascript:alert(1)", "data:text/html,x", "https://good.example@evil.example/", "//x", ""]) assert.equal(addressOf(url), null, url);
});
