/** The fields of a server's form: what is written in them, kept as a draft, and what is wrong with it. */

import { useId, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError } from "../core/api";
import { contentOf, emptyOf, type Field, fieldsOf, isEmpty, looksSecret, problemOf, type Values, type Written } from "../core/forms";
import { inWords, sentence } from "../core/words";

interface Draft {
  text: string;
  keep: (text: string) => void;
}

type Form = ReturnType<typeof useFields>;

/** `refused` is the error with which the engine refused what was sent last; `forgive` is called when that is changed. */
export function useFields(schema: object, draft: Draft, refused: unknown, forgive: () => void) {
  const fields = useMemo(() => fieldsOf(schema), [schema]);
  const [typed, setTyped] = useState<Values | null>(null);
  const [tried, setTried] = useState(false);
  const place = useRef<HTMLDivElement>(null);
  const [wrong, setWrong] = useState(0);
  const kept = typed ?? read(draft.text);
  const valueOf = (field: Field): Written => (fits(field, kept[field.name]) ? kept[field.name]! : emptyOf(field));
  const values = Object.fromEntries(fields.map((field) => [field.name, valueOf(field)]));
  const errors = refused instanceof ApiError ? refused.fields : [];
  const own = new Map(errors.map(({ field, message }) => [field.replace(/^content\./, ""), sentence(message)]));
  useLayoutEffect(() => {
    if (wrong || own.size) place.current?.querySelector<HTMLElement>("[aria-invalid]")?.focus();
  }, [wrong, refused]);

  return {
    fields,
    place,
    valueOf,
    problemOf: (field: Field) => own.get(field.name) ?? (tried ? problemOf(field, valueOf(field)) : ""),
    write: (field: Field, value: Written) => {
      const next = { ...values, [field.name]: value };
      setTyped(next);
      if (refused) forgive();
      draft.keep(JSON.stringify(Object.fromEntries(fields.flatMap((each) => (looksSecret(each) ? [] : [[each.name, next[each.name]]])))));
    },
    /** What is to be sent; null where something is wrong, which is shown. */
    checked: () => {
      setTried(true);
      if (!fields.some((field) => problemOf(field, valueOf(field)))) return contentOf(fields, values);
      setWrong(wrong + 1);
      return null;
    },
    /** Why the engine refused what no field is to blame for. */
    others: (error: unknown): string => {
      const rest = errors.filter(({ field }) => !fields.some(({ name }) => field === `content.${name}`));
      if (errors.length) return rest.map(({ message }) => sentence(message)).join(" ");
      return error === null ? "" : error instanceof ApiError ? inWords(error) : sentence(String(error));
    },
  };
}

/** A draft, which this browser keeps: it may be of another release, or damaged. */
function read(text: string): Values {
  try {
    return JSON.parse(text || "{}") ?? {};
  } catch {
    return {};
  }
}

const fits = (field: Field, value: unknown): boolean =>
  Array.isArray(emptyOf(field)) ? Array.isArray(value) : typeof value === typeof emptyOf(field);

export const Fields = ({ fields: form }: { fields: Form }) => (
  <div class="asked-fields" ref={form.place}>
    {form.fields.map((field) => (
      <FieldView key={field.name} form={form} field={field} />
    ))}
  </div>
);

const TYPES = { email: "email", uri: "url", date: "date", "date-time": "datetime-local" } as const;
const MODES = { number: "decimal", integer: "numeric" } as const;

function FieldView({ form, field }: { form: Form; field: Field }) {
  const id = useId();
  const { kind, label, description, required, options, initial } = field;
  const value = form.valueOf(field);
  const problem = form.problemOf(field);
  const standsIn = initial !== null && isEmpty(value) && !["text", "several"].includes(kind);
  const hint = [description, standsIn ? `Left empty, ${initial} is sent.` : ""].filter(Boolean).join(" ");
  const write = (written: Written) => form.write(field, written);
  const described = { "aria-invalid": problem ? ("true" as const) : undefined, "aria-describedby": `${id}-about` };
  const name = (
    <>
      <bdi>{label}</bdi>
      {required && initial === null && kind !== "boolean" && " (needed)"}
    </>
  );
  const about = (
    <p id={`${id}-about`} class="asked-about">
      {hint && <span class="hint">{hint} </span>}
      <span class="bad-text" data-testid="asked-problem">{problem}</span>
    </p>
  );
  if (kind === "several") {
    const chosen = value as string[];
    return (
      <fieldset class="asked-field" data-testid="asked-field" data-field={field.name} aria-describedby={`${id}-about`}>
        <legend>{name}</legend>
        {options.map((option, at) => (
          <label key={option.value} class="switch">
            <input
              type="checkbox"
              checked={chosen.includes(option.value)}
              aria-invalid={at === 0 && problem ? "true" : undefined}
              onChange={({ currentTarget: { checked } }) =>
                write(options.map((each) => each.value).filter((each) => (each === option.value ? checked : chosen.includes(each))))
              }
            />
            <bdi>{option.label}</bdi>
          </label>
        ))}
        {about}
      </fieldset>
    );
  }
  if (kind === "boolean")
    return (
      <div class="asked-field" data-testid="asked-field" data-field={field.name}>
        <label class="switch">
          <input type="checkbox" checked={value === true} {...described} onChange={({ currentTarget }) => write(currentTarget.checked)} />
          {name}
        </label>
        {about}
      </div>
    );
  return (
    <div class="asked-field" data-testid="asked-field" data-field={field.name}>
      <label for={id}>{name}</label>
      {kind === "one" ? (
        <select id={id} value={String(value)} required={required} {...described} onChange={({ currentTarget }) => write(currentTarget.value)}>
          {initial === null && <option value="">–</option>}
          {options.map((option) => (
            <option key={option.value} value={option.value}>{option.label}</option>
          ))}
        </select>
      ) : (
        <input
          id={id}
          type={(TYPES[kind as keyof typeof TYPES] ?? "text") as "text"}
          inputMode={MODES[kind as keyof typeof MODES]}
          step={kind === "date-time" ? 1 : undefined}
          dir="auto"
          autocomplete="off"
          required={required && initial === null}
          value={String(value)}
          {...described}
          onInput={({ currentTarget }) => write(currentTarget.value)}
        />
      )}
      {about}
    </div>
  );
}
