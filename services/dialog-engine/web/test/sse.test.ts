/** The parser of event streams. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { SseParser } from "../src/core/sse";

const STREAMS: [string, [string | null, string, string][]][] = [
  ["id: 1-1\nevent: text\ndata: {}\n\n", [["1-1", "text", "{}"]]],
  ["data: a\r\ndata: b\r\n\r\n", [[null, "message", "a\nb"]]],
  ["data: a\rdata:b\r\r", [[null, "message", "a\nb"]]],
  [": ping\n\n: ping\n\ndata:  two spaces\n\n", [[null, "message", " two spaces"]]],
  ["data\n\n", [[null, "message", ""]]],
  ["id: 7\n\ndata: after an id alone\n\n", [[null, "message", "after an id alone"]]],
  ["retry: 10\nunknown: x\ndata: a\n\n", [[null, "message", "a"]]],
  ["data: never finished\n", []],
];

function parse(...chunks: string[]) {
  const parser = new SseParser();
  return chunks.flatMap((chunk) => parser.push(chunk));
}

test("the parser reads the event stream format", () => {
  for (const [stream, expected] of STREAMS)
    assert.deepEqual(
      parse(stream).map(({ id, type, data }) => [id, type, data]),
      expected,
    );
});

test("the parser takes a stream cut anywhere", () => {
  const stream =
    ': ping\r\n\r\nid: 1-1\r\nevent: text\r\ndata: {"delta": "häß"}\r\n\r\nid: 1-2\ndata: a\ndata: b\n\ndata: c\r\r';
  const whole = parse(stream);
  assert.deepEqual(parse(...stream), whole);
  for (let at = 0; at < stream.length; at += 1) assert.deepEqual(parse(stream.slice(0, at), stream.slice(at)), whole);
});
