/** The order of event ids, `<epoch>-<seq>`: both are numbers, and a later epoch wins. */
export function compareIds(left, right) {
  const [leftEpoch, leftSeq] = left.split("-").map(Number);
  const [rightEpoch, rightSeq] = right.split("-").map(Number);
  return leftEpoch - rightEpoch || leftSeq - rightSeq;
}
