/** What the page does not need at first, above all the layout of Markdown, which is half of its code: see loaded.ts. */

export { Answer } from "./answer";
export { Questions } from "./asked";
export { DoubtDialog } from "./confirmations";
export { Edit } from "./edit";
export { AttachedList, OfferDialog, OfferList } from "./offers";
export { Large } from "./large";
export { WaitingMessage } from "./queue";
export { Versions } from "./versions";
