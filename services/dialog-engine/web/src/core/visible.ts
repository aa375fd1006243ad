/** Texts of a model or a server, shown such that nothing in them is hidden from the person who decides about them. */

// Controls, direction marks, joiners, unassigned and private characters; spaces other than the ordinary one; and letters
// that look like nothing. Line feeds are left: they make lines.
const UNSEEN = /(?!\n)[\p{C}\p{Default_Ignorable_Code_Point}\p{Zl}\p{Zp}\u2800]|(?! )\p{Zs}/gu;

const escaped = (character: string): string =>
  character
    .split("")
    .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`)
    .join("");

/** The text with an escape in place of each character that cannot be seen. JSON stays the same JSON. */
export const visible = (text: string): string => text.replace(UNSEEN, escaped);
