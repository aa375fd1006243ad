/** Runs before the first paint. */

import { applyTheme } from "./page/theme";

applyTheme();
