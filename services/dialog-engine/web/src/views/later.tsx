/** What the page does not need at first, above all the layout of Markdown, which is half of its code: see loaded.ts. */

export { Answer } from "./answer";
export { DoubtDialog } from "./confirmations";
export { Edit } from "./edit";
export { Large } from "./large";
export { WaitingMessage } from "./queue";
export { Versions } from "./versions";
