/** What is loaded when it is needed, as one file: it is not among those that a page needs at first. */

export { Edit } from "./edit";
export { Large } from "./large";
export { LeavingDialog } from "./leaving";
