/** What the page does not need at first: see loaded.ts. */

export { DeleteDialog, LeavingDialog } from "./confirmations";
export { Edit } from "./edit";
export { Large } from "./large";
export { WaitingMessage } from "./queue";
export { Versions } from "./versions";
