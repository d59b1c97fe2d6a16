// Forms generated from the schemas.
import { useEffect, useId, useState } from 'preact/hooks';
import type { Json } from './api';
import { Button, Dialog, Empty, Field, Markdown, useLoad } from './controls';
import { Icon } from './icons';
import { fault, plain, plugins as allPlugins, pluginSchema, shape, words, type PluginInfo, type Schema } from './schema';

interface Props {
  name: string;
  schema: Schema;
  root: Schema;
  value: Json;
  onChange: (value: Json) => void;
  required?: boolean;
  /** Where plugins stand: consumers have other schemas. */
  scope: 'resource' | 'consumer' | 'stream';
  disabled?: boolean;
}

/** Fields that every resource has and people seldom look for come last. */
const LATE = ['labels', 'desc', 'status', 'priority', 'vars', 'filter_func', 'remote_addr', 'remote_addrs', 'timeout', 'script', '_meta'];
const KEPT = ['create_time', 'update_time', 'id', 'username'];

export function ObjectForm({ schema, root, value, onChange, scope, disabled, top, named, usual = [] }: Omit<Props, 'name'> & { top?: boolean; named?: boolean; usual?: string[] }) {
  // Ids of some families stand in their documents.
  const kept = top && !named ? KEPT : [];
  const [adding, setAdding] = useState(false);
  const names = Object.keys(schema.properties ?? {}).filter((name) => !kept.includes(name));
  const needed: string[] = schema.required ?? [];
  const order = (name: string) => (needed.includes(name) ? 0 : LATE.includes(name) ? 2 : 1);
  const shown = names.filter((name) => needed.includes(name) || (value && name in value) || (!disabled && usual.includes(name)));
  shown.sort((a, b) => order(a) - order(b));
  const rest = names.filter((name) => !shown.includes(name));
  const unknown = Object.keys(value ?? {}).filter((name) => !names.includes(name) && !kept.includes(name));
  const set = (name: string, next: Json) => {
    const { [name]: _, ...others } = value ?? {};
    if (next === undefined) onChange(others);
    else onChange(name in (value ?? {}) ? { ...value, [name]: next } : { ...others, [name]: next });
  };
  return (
    <div class={top ? 'form whole' : 'form'}>
      {shown.map((name) => (
        <div class="form-row" key={name}>
          <SchemaField name={name} schema={schema.properties[name]} root={root} value={value?.[name]} required={needed.includes(name)} scope={scope} disabled={disabled} onChange={(next) => set(name, next)} />
          {!needed.includes(name) && !disabled && value && name in value && <Button icon="close" tone="quiet" title={`Remove ${words(name)}`} onClick={() => set(name, undefined)} />}
        </div>
      ))}
      {unknown.map((name) => (
        <div class="form-row" key={name}>
          <JsonField name={name} description="Not in the schema." value={value[name]} disabled={disabled} onChange={(next) => set(name, next)} />
          {!disabled && <Button icon="close" tone="quiet" title={`Remove ${words(name)}`} onClick={() => set(name, undefined)} />}
        </div>
      ))}
      {!disabled && rest.length > 0 && (
        adding
          ? <FieldPicker names={rest} schema={schema} root={root} onClose={() => setAdding(false)} onPick={(name) => { setAdding(false); set(name, beginning(plain(schema.properties[name], root), root)); }} />
          : <Button icon="plus" tone="quiet" onClick={() => setAdding(true)}>Add a field</Button>
      )}
    </div>
  );
}

function FieldPicker({ names, schema, root, onPick, onClose }: { names: string[]; schema: Schema; root: Schema; onPick: (name: string) => void; onClose: () => void }) {
  const [text, setText] = useState('');
  const found = names.filter((name) => words(name).includes(text.toLowerCase()) || name.includes(text.toLowerCase()));
  return (
    <Dialog title="Add a field" onClose={onClose}>
      <input class="input" autoFocus placeholder="Search fields" aria-label="Search fields" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      <ul class="choices">
        {found.map((name) => (
          <li key={name}><button type="button" class="choice" onClick={() => onPick(name)}><strong>{words(name)}</strong><span class="hint">{first(plain(schema.properties[name], root).description)}</span></button></li>
        ))}
      </ul>
    </Dialog>
  );
}

const first = (text?: string) => (text ?? '').split(/\n\n|(?<=\.)\s/)[0]!.replace(/`/g, '');

/** Fields that the example of a plugin has at its top: most configurations have them. */
const usualFields = (example?: string) => [...(example ?? '').matchAll(/^([a-z_]+):/gm)].map((found) => found[1]!);

/** The value that a field begins with. */
function beginning(schema: Schema, root: Schema): Json {
  if (schema.default !== undefined && schema.default !== null) return schema.default;
  switch (shape(schema, root)) {
    case 'object': return Object.fromEntries((schema.required ?? []).map((name: string) => [name, beginning(plain(schema.properties[name], root), root)]));
    case 'choice': return schema.enum.find((one: Json) => one !== null);
    case 'number': return schema.minimum ?? 0;
    case 'boolean': return true;
    case 'texts': case 'choices': case 'list': return [];
    case 'map': return {};
    case 'json': return schema.type === 'array' ? [] : {};
    default: return '';
  }
}

export function SchemaField(props: Props) {
  const { name, root, value, onChange, required, scope, disabled } = props;
  const schema = plain(props.schema, root);
  const label = <>{words(name)}{required && <span class="needed" title="needed"> *</span>}</>;
  const hint = schema.description && <Markdown text={schema.description} />;
  const id = useId();
  if (name === 'plugins') return <PluginsField value={value} onChange={onChange} scope={scope} disabled={disabled} />;
  if (name === 'nodes') return <NodesField value={value} onChange={onChange} disabled={disabled} description={schema.description} />;
  switch (shape(schema, root)) {
    case 'boolean':
      return (
        <div class="field check">
          <input type="checkbox" id={id} checked={value ?? schema.default ?? false} disabled={disabled} aria-describedby={`${id}-hint`} onChange={(event) => onChange(event.currentTarget.checked)} />
          <label for={id}>{label}</label>
          <div class="field-hint" id={`${id}-hint`}>{hint}</div>
        </div>
      );
    case 'choice':
      return (
        <Field label={label} hint={hint}>
          {(id, about) => (
            <select id={id} aria-describedby={about} class="input" disabled={disabled} value={JSON.stringify(value ?? schema.default)} onChange={(event) => onChange(JSON.parse(event.currentTarget.value))}>
              {schema.enum.filter((one: Json) => one !== null).map((one: Json) => <option key={String(one)} value={JSON.stringify(one)}>{String(one)}</option>)}
            </select>
          )}
        </Field>
      );
    case 'number':
      return (
        <Field label={label} hint={hint} error={fault(schema, value)}>
          {(id, about) => (
            <input id={id} aria-describedby={about} class="input short" type="number" step={schema.type === 'integer' ? 1 : 'any'} min={schema.minimum} max={schema.maximum} disabled={disabled} value={value ?? ''}
              placeholder={schema.default !== undefined ? String(schema.default) : ''} onInput={(event) => onChange(event.currentTarget.value === '' ? undefined : Number(event.currentTarget.value))} />
          )}
        </Field>
      );
    case 'scalar':
      return (
        <Field label={label} hint={hint}>
          {(id, about) => <input id={id} aria-describedby={about} class="input" disabled={disabled} autocomplete="off" spellcheck={false} value={value === undefined || value === null ? '' : String(value)}
            onInput={(event) => { const text = event.currentTarget.value; onChange(/^-?\d+(\.\d+)?$/.test(text) ? Number(text) : text); }} />}
        </Field>
      );
    case 'text': {
      const long = /^(cert|key|content|private_key|public_key|.*_template|body)$/.test(name) && name !== 'key' || (typeof value === 'string' && value.includes('\n'));
      return (
        <Field label={label} hint={hint} error={typeof value === 'string' ? fault(schema, value) : undefined}>
          {(id, about) => long
            ? <textarea id={id} aria-describedby={about} class="input mono" rows={5} disabled={disabled} value={value ?? ''} onInput={(event) => onChange(event.currentTarget.value)} />
            : <input id={id} aria-describedby={about} class="input" disabled={disabled} autocomplete="off" spellcheck={false} value={value ?? ''} placeholder={typeof schema.default === 'string' ? schema.default : ''} onInput={(event) => onChange(event.currentTarget.value)} />}
        </Field>
      );
    }
    case 'texts':
      return <TextsField label={label} hint={hint} value={value} disabled={disabled} onChange={onChange} />;
    case 'choices': {
      const items: Json[] = plain(schema.items, root).enum;
      const chosen: Json[] = Array.isArray(value) ? value : [];
      return (
        <fieldset class="field" disabled={disabled}>
          <legend>{label}</legend>
          <div class="chips">
            {items.map((item) => (
              <label key={String(item)} class={`toggle ${chosen.includes(item) ? 'on' : ''}`}>
                <input type="checkbox" class="sr" checked={chosen.includes(item)} onChange={() => onChange(chosen.includes(item) ? chosen.filter((one) => one !== item) : [...chosen, item])} />{String(item)}
              </label>
            ))}
          </div>
          <div class="field-hint">{hint}</div>
        </fieldset>
      );
    }
    case 'object':
      return (
        <fieldset class="group">
          <legend>{label}</legend>
          {hint && <div class="field-hint">{hint}</div>}
          <ObjectForm schema={schema} root={root} value={value ?? {}} onChange={onChange} scope={scope} disabled={disabled} />
        </fieldset>
      );
    case 'list': {
      const items: Json[] = Array.isArray(value) ? value : [];
      const of = plain(schema.items, root);
      return (
        <fieldset class="group">
          <legend>{label}</legend>
          {hint && <div class="field-hint">{hint}</div>}
          {items.map((item, at) => (
            <div class="form-row boxed" key={at}>
              <ObjectForm schema={of} root={root} value={item} scope={scope} disabled={disabled} onChange={(next) => onChange(items.map((one, n) => (n === at ? next : one)))} />
              {!disabled && <Button icon="trash" tone="quiet" title={`Remove entry ${at + 1}`} onClick={() => onChange(items.filter((_, n) => n !== at))} />}
            </div>
          ))}
          {!disabled && <Button icon="plus" tone="quiet" onClick={() => onChange([...items, beginning(of, root)])}>Add an entry</Button>}
        </fieldset>
      );
    }
    case 'map':
      return <MapField label={label} hint={hint} value={value} numbers={plain(schema.additionalProperties, root).type !== 'string'} disabled={disabled} onChange={onChange} />;
    default:
      return <JsonField name={name} description={schema.description} value={value} disabled={disabled} onChange={onChange} />;
  }
}

function TextsField({ label, hint, value, onChange, disabled }: { label: Json; hint: Json; value: Json; onChange: (value: Json) => void; disabled?: boolean }) {
  const [text, setText] = useState('');
  const items: string[] = Array.isArray(value) ? value : [];
  const add = () => {
    if (text.trim()) onChange([...items, text.trim()]);
    setText('');
  };
  return (
    <Field label={label} hint={hint}>
      {(id, about) => (
        <div class="tokens">
          {items.map((item, at) => (
            <span class="token" key={at}>{String(item)}{!disabled && <button type="button" aria-label={`Remove ${item}`} onClick={() => onChange(items.filter((_, n) => n !== at))}><Icon name="close" size={12} /></button>}</span>
          ))}
          {!disabled && <input id={id} aria-describedby={about} value={text} placeholder="type, then Enter" spellcheck={false} onInput={(event) => setText(event.currentTarget.value)} onBlur={add}
            onKeyDown={(event) => {
              if (event.key === 'Enter' || event.key === ',') { event.preventDefault(); add(); }
              if (event.key === 'Backspace' && !text) onChange(items.slice(0, -1));
            }} />}
        </div>
      )}
    </Field>
  );
}

function MapField({ label, hint, value, numbers, onChange, disabled }: { label: Json; hint: Json; value: Json; numbers: boolean; onChange: (value: Json) => void; disabled?: boolean }) {
  const entries = Object.entries(value ?? {});
  const set = (next: [string, unknown][]) => onChange(Object.fromEntries(next));
  return (
    <fieldset class="group">
      <legend>{label}</legend>
      {hint && <div class="field-hint">{hint}</div>}
      {entries.map(([name, item], at) => (
        <div class="pair" key={at}>
          <input class="input" aria-label="Name" value={name} disabled={disabled} onChange={(event) => set(entries.map((entry, n) => (n === at ? [event.currentTarget.value, item] : entry)))} />
          <input class="input" aria-label={`Value of ${name}`} inputMode={numbers ? 'decimal' : 'text'} disabled={disabled} value={String(item)} onInput={(event) => set(entries.map((entry, n) => (n === at ? [name, numbers ? Number(event.currentTarget.value) : event.currentTarget.value] : entry)))} />
          {!disabled && <Button icon="close" tone="quiet" title={`Remove ${name}`} onClick={() => set(entries.filter((_, n) => n !== at))} />}
        </div>
      ))}
      {!disabled && <Button icon="plus" tone="quiet" onClick={() => set([...entries, [`name${entries.length + 1}`, numbers ? 0 : '']])}>Add</Button>}
    </fieldset>
  );
}

/** An address of a node, which counts once it is typed: half of one may be that of another node. */
function AddressInput({ value, onChange, disabled }: { value: string; onChange: (value: string) => void; disabled?: boolean }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  return (
    <input class="input" aria-label="Address of the node" placeholder="host:port" value={text} disabled={disabled} spellcheck={false} onInput={(event) => setText(event.currentTarget.value)} onChange={(event) => onChange(event.currentTarget.value)} />
  );
}

/** Nodes of an upstream, which are a mapping of addresses to weights or a list. */
function NodesField({ value, onChange, disabled, description }: { value: Json; onChange: (value: Json) => void; disabled?: boolean; description?: string }) {
  if (Array.isArray(value) && value.some((node) => Object.keys(node).some((name) => !['host', 'port', 'weight'].includes(name)))) {
    return <JsonField name="nodes" description={description} value={value} disabled={disabled} onChange={onChange} />;
  }
  const asList = Array.isArray(value);
  const rows: { address: string; weight: number }[] = asList
    ? value.map((node: Json) => ({ address: node.port ? `${node.host}:${node.port}` : node.host, weight: node.weight }))
    : Object.entries(value ?? {}).map(([address, weight]) => ({ address, weight: Number(weight) }));
  const set = (next: typeof rows) => onChange(asList
    ? next.map(({ address, weight }) => {
        const at = address.lastIndexOf(':');
        const port = Number(address.slice(at + 1));
        return at > 0 && Number.isInteger(port) ? { host: address.slice(0, at), port, weight } : { host: address, weight };
      })
    : Object.fromEntries(next.map(({ address, weight }) => [address, weight])));
  const total = rows.reduce((sum, row) => sum + row.weight, 0);
  return (
    <fieldset class="group">
      <legend>nodes</legend>
      {rows.map((row, at) => (
        <div class="pair" key={at}>
          <AddressInput value={row.address} disabled={disabled} onChange={(address) => set(rows.map((one, n) => (n === at ? { ...one, address } : one)))} />
          <input class="input short" type="number" min={0} aria-label={`Weight of ${row.address}`} value={row.weight} disabled={disabled} onInput={(event) => set(rows.map((one, n) => (n === at ? { ...one, weight: Number(event.currentTarget.value) } : one)))} />
          <span class="hint share">{total ? `${Math.round((row.weight / total) * 100)} %` : ''}</span>
          {!disabled && <Button icon="close" tone="quiet" title={`Remove ${row.address}`} onClick={() => set(rows.filter((_, n) => n !== at))} />}
        </div>
      ))}
      {!disabled && <Button icon="plus" tone="quiet" onClick={() => set([...rows, { address: `127.0.0.1:${8080 + rows.length}`, weight: 1 }])}>Add a node</Button>}
    </fieldset>
  );
}

export function JsonField({ name, description, value, onChange, disabled, rows }: { name: string; description?: string; value: Json; onChange: (value: Json) => void; disabled?: boolean; rows?: number }) {
  const [text, setText] = useState(() => JSON.stringify(value, null, 2) ?? '');
  const [wrong, setWrong] = useState<string>();
  useEffect(() => {
    try {
      if (JSON.stringify(JSON.parse(text)) === JSON.stringify(value)) return;
    } catch { /* is replaced */ }
    setText(JSON.stringify(value, null, 2) ?? '');
    setWrong(undefined);
  }, [JSON.stringify(value)]);
  const type = (next: string) => {
    setText(next);
    try {
      onChange(JSON.parse(next));
      setWrong(undefined);
    } catch (error) {
      setWrong(String((error as Error).message));
    }
  };
  return (
    <Field label={words(name)} hint={description && <Markdown text={description} />} error={wrong}>
      {(id, about) => <textarea id={id} aria-describedby={about} class="input mono" rows={rows ?? Math.min(16, text.split('\n').length + 1)} disabled={disabled} spellcheck={false} value={text} onInput={(event) => type(event.currentTarget.value)} />}
    </Field>
  );
}

function PluginsField({ value, onChange, scope, disabled }: { value: Json; onChange: (value: Json) => void; scope: Props['scope']; disabled?: boolean }) {
  const [adding, setAdding] = useState(false);
  const names = Object.keys(value ?? {});
  return (
    <fieldset class="group plugins">
      <legend>plugins</legend>
      {names.map((name) => (
        <PluginForm key={name} name={name} scope={scope} disabled={disabled} value={value[name]} open={names.length === 1}
          onChange={(next) => onChange({ ...value, [name]: next })}
          onRemove={() => { const { [name]: _, ...rest } = value; onChange(rest); }} />
      ))}
      {!names.length && <p class="hint">No plugin.</p>}
      {!disabled && <Button icon="plus" onClick={() => setAdding(true)}>Add a plugin</Button>}
      {adding && <PluginPicker scope={scope} taken={names} onClose={() => setAdding(false)} onPick={(name, conf) => { setAdding(false); onChange({ ...(value ?? {}), [name]: conf }); }} />}
    </fieldset>
  );
}

function PluginForm({ name, value, onChange, onRemove, scope, disabled, open: atFirst }: { name: string; value: Json; onChange: (value: Json) => void; onRemove: () => void; scope: Props['scope']; disabled?: boolean; open?: boolean }) {
  const [open, setOpen] = useState(!!atFirst);
  const { data } = useLoad(async () => {
    const [all, own] = await Promise.all([allPlugins(), pluginSchema(name).catch(() => ({}))]);
    const info = all.find((one) => one.name === name);
    const schema = scope === 'consumer' && info?.auth ? await pluginSchema(name, 'consumer').catch(() => own) : own;
    return { info, schema };
  }, [name, scope]);
  const off = value?._meta?.disable === true;
  return (
    <div class={`plugin ${off ? 'off' : ''}`}>
      <div class="plugin-head">
        <button type="button" class="plugin-name" aria-expanded={open} onClick={() => setOpen(!open)}>
          <Icon name={open ? 'down' : 'right'} size={15} /><strong>{name}</strong>{off && <span class="hint">off</span>}
          {!open && <span class="hint cut">{JSON.stringify(value)}</span>}
        </button>
        {!disabled && <Button icon="trash" tone="quiet" title={`Remove ${name}`} onClick={onRemove} />}
      </div>
      {open && (
        <div class="plugin-body">
          <div>{data && <ObjectForm schema={plain(data.schema, data.schema)} root={data.schema} value={value ?? {}} onChange={onChange} scope={scope} disabled={disabled} usual={usualFields(data.info?.example)} />}</div>
          {data?.info && (
            <aside class="plugin-doc" tabIndex={0} aria-label={`About ${name}`}>
              <Markdown text={data.info.doc} />
              {data.info.example && <><h4>Example</h4><pre>{data.info.example}</pre></>}
              <p class="hint">Priority {data.info.priority}</p>
            </aside>
          )}
        </div>
      )}
    </div>
  );
}

function PluginPicker({ taken, scope, onPick, onClose }: { taken: string[]; scope: Props['scope']; onPick: (name: string, conf: Json) => void; onClose: () => void }) {
  const [text, setText] = useState('');
  const { data } = useLoad(allPlugins, []);
  const fits = (info: PluginInfo) =>
    info.supported && !taken.includes(info.name) && (scope === 'stream' ? info.streams : info.requests) && (info.name + ' ' + info.doc).toLowerCase().includes(text.toLowerCase());
  const found = (data ?? []).filter(fits).sort((a, b) => Number(b.name.includes(text)) - Number(a.name.includes(text)) || a.name.localeCompare(b.name));
  const pick = async (info: PluginInfo) => {
    const schema = await pluginSchema(info.name, scope === 'consumer' && info.auth ? 'consumer' : undefined).catch(() => ({}));
    onPick(info.name, beginning({ type: 'object', properties: {}, ...schema, default: undefined }, schema) || {});
  };
  return (
    <Dialog title="Add a plugin" onClose={onClose} wide>
      <input class="input" autoFocus placeholder="Search by name or purpose" aria-label="Search plugins" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      <ul class="choices grid-choices">
        {found.map((info) => (
          <li key={info.name}><button type="button" class="choice" onClick={() => void pick(info)}><strong>{info.name}</strong><span class="hint">{first(info.doc)}</span></button></li>
        ))}
      </ul>
      {data && !found.length && <Empty title={`No plugin fits “${text}”`} icon="plugins" />}
    </Dialog>
  );
}
