/** Whether this device is used with a finger: then Enter makes a line, as on every phone, and nothing gets the focus by itself. */

export const byTouch = (): boolean => matchMedia("(pointer: coarse)").matches;
