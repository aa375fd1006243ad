/** The icons. Each is decoration: the control around it needs a name of its own. */

/** What each draws, in a square of 20; a solid part is filled, a faint one hardly seen. */
const PATHS = {
  alert: ["M10 3 2.5 16.5h15zM10 8v4M10 14.3v.1"],
  busy: ["faint M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14", "M10 3a7 7 0 0 1 7 7"],
  check: ["m4.5 10.5 3.7 3.7 7.3-8"],
  chevron: ["m6 8 4 4 4-4"],
  clock: ["M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14M10 6v4l2.5 2"],
  contrast: ["M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14", "solid M10 3a7 7 0 0 1 0 14z"],
  copy: ["M7.5 7.5h8v8h-8zM12.5 7.5v-3h-8v8h3"],
  cross: ["m5 5 10 10M15 5 5 15"],
  down: ["M10 4v12m-5-5 5 5 5-5"],
  menu: ["M3 5.5h14M3 10h14M3 14.5h14"],
  plus: ["M10 4v12M4 10h12"],
  question: ["M7.2 7.5a2.8 2.8 0 1 1 4.3 2.4c-.9.6-1.5 1.1-1.5 2.1M10 15v.1"],
  stop: ["solid M5.5 5.5h9v9h-9z"],
  trash: ["M3.5 5.5h13M8 5.5v-2h4v2M5.5 5.5l.7 11h7.6l.7-11M8.5 8.5v5M11.5 8.5v5"],
  up: ["M10 16V4m-5 5 5-5 5 5"],
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 20 20" aria-hidden="true">
      {PATHS[name].map((path) => {
        const [, kind, drawn] = /^(?:(solid|faint) )?(.*)$/.exec(path) ?? [];
        return <path key={path} class={kind} d={drawn} />;
      })}
    </svg>
  );
}
