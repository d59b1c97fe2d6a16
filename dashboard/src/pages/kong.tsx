// Entities of Kong's family, over Kong's own Admin API.
import { useMemo, useState } from 'preact/hooks';
import { get, query, refreshAbout, refusal, request, type Json } from '../api';
import { asApiError, Badge, Button, Card, Chips, Dialog, Empty, Failure, Field, Loading, Notice, Page, Tabs, toast, useLoad } from '../controls';
import { equal } from '../diff';
import { ObjectForm } from '../form';
import { ago } from '../format';
import { Icon } from '../icons';
import { go, href, setQuery, usePlace } from '../router';
import type { Schema } from '../schema';
import { Review } from './review';

export interface KongKind {
  kind: string;
  label: string;
  one: string;
  icon: string;
  group: 'Traffic' | 'Callers' | 'Security';
  hint: string;
  blank: Json;
  columns: { label: string; of: (value: Json) => string | string[] }[];
}

const text = (value: Json) => (value === undefined || value === null ? '' : String(value));
const name = (reference: Json) => (reference ? text(reference.name ?? reference.id) : '');

export const KONG: KongKind[] = [
  { kind: 'services', label: 'Services', one: 'service', icon: 'services', group: 'Traffic', hint: 'Upstream APIs.', blank: { name: '', url: 'http://127.0.0.1:8080' },
    columns: [{ label: 'Host', of: (v) => `${v.protocol}://${v.host}:${v.port}${v.path ?? ''}` }] },
  { kind: 'routes', label: 'Routes', one: 'route', icon: 'routes', group: 'Traffic', hint: 'Rules that say which requests go to which service.', blank: { name: '', paths: ['/'], service: { name: '' } },
    columns: [{ label: 'Matches', of: (v) => [...(v.methods ?? []), ...(v.paths ?? []), ...(v.snis ?? [])] }, { label: 'Hosts', of: (v) => v.hosts ?? [] }, { label: 'Service', of: (v) => name(v.service) }] },
  { kind: 'plugins', label: 'Plugins', one: 'plugin', icon: 'plugins', group: 'Traffic', hint: 'What runs for requests: of a service, a route, a consumer, or all.', blank: { name: 'rate-limiting', config: { minute: 60 } },
    columns: [{ label: 'Plugin', of: (v) => v.name }, { label: 'Of', of: (v) => ['service', 'route', 'consumer'].filter((of) => v[of]).map((of) => `${of} ${name(v[of])}`) }, { label: 'State', of: (v) => (v.enabled === false ? 'off' : 'on') }] },
  { kind: 'upstreams', label: 'Upstreams', one: 'upstream', icon: 'upstreams', group: 'Traffic', hint: 'Balancers over targets.', blank: { name: '' }, columns: [{ label: 'Algorithm', of: (v) => text(v.algorithm) }] },
  { kind: 'consumers', label: 'Consumers', one: 'consumer', icon: 'consumers', group: 'Callers', hint: 'Who calls.', blank: { username: '' }, columns: [{ label: 'Custom id', of: (v) => text(v.custom_id) }] },
  { kind: 'consumer_groups', label: 'Consumer groups', one: 'consumer group', icon: 'consumer_groups', group: 'Callers', hint: 'Consumers together.', blank: { name: '' }, columns: [] },
  { kind: 'certificates', label: 'Certificates', one: 'certificate', icon: 'ssls', group: 'Security', hint: 'Certificates for names that clients ask for by TLS.', blank: { cert: '', key: '' }, columns: [{ label: 'Names', of: (v) => v.snis ?? [] }] },
  { kind: 'ca_certificates', label: 'CA certificates', one: 'CA certificate', icon: 'secrets', group: 'Security', hint: 'Authorities that are trusted.', blank: { cert: '' }, columns: [] },
];

const SIZE = 100;
const title = (value: Json) => value.name ?? value.username ?? value.custom_id ?? value.id;

export function KongList({ kind }: { kind: string }) {
  const info = KONG.find((one) => one.kind === kind)!;
  const place = usePlace();
  const offset = place.query.get('offset') ?? '';
  const words = place.query.get('q') ?? '';
  const { data, error } = useLoad(() => get(`/${kind}` + query({ size: SIZE, offset, search: words })), [kind, offset, words]);
  const refused = refusal(kind);
  const found: Json[] = data?.data ?? [];
  return (
    <Page title={info.label} hint={info.hint} actions={refused ? <span class="read-only"><Icon name="lock" size={15} /> read only</span> : <a class="button primary" href={href(['new', kind])}><Icon name="plus" size={16} />New {info.one}</a>}>
      <Card class="flush">
        <div class="toolbar">
          <label class="search"><Icon name="search" size={16} /><span class="sr">Search</span><input data-search type="search" placeholder="Search names, hosts, paths and tags  ( / )" value={words} onInput={(event) => setQuery({ q: event.currentTarget.value })} /></label>
        </div>
        {error && <Failure error={error} />}
        {!data && !error && <Loading />}
        {data && !found.length && <Empty icon={info.icon} title={words ? `Nothing has “${words}” in it` : `No ${info.one} yet`} />}
        {found.length > 0 && (
          <div class="scroll" tabIndex={0} role="region" aria-label="Table">
            <table>
              <thead><tr><th>Name</th>{info.columns.map((column) => <th key={column.label}>{column.label}</th>)}<th>Tags</th><th class="num">Changed</th></tr></thead>
              <tbody>
                {found.map((one) => (
                  <tr key={one.id}>
                    <td class="id"><a href={href(['entity', kind, one.id])}>{title(one)}</a></td>
                    {info.columns.map((column) => <td key={column.label}><Chips items={column.of(one)} /></td>)}
                    <td><Chips items={one.tags ?? []} /></td>
                    <td class="num">{ago(one.updated_at ?? one.created_at)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
        {data && (data.offset || offset) && (
          <nav class="pager" aria-label="Pages">
            {offset && <Button onClick={() => setQuery({ q: words })}>First page</Button>}
            {data.offset && <Button onClick={() => setQuery({ q: words, offset: data.offset })}>Next page</Button>}
          </nav>
        )}
      </Card>
    </Page>
  );
}

const KEPT = ['id', 'created_at', 'updated_at'];
const bare = (value: Json) => Object.fromEntries(Object.entries(value ?? {}).filter(([field, of]) => !KEPT.includes(field) && of !== null));

/** A JSON Schema of one of Kong's. */
export function schemaOf(kong: Json): Schema {
  const of = (field: Json): Schema => {
    const schema: Schema = { description: field.description };
    if (field.default !== undefined && field.default !== null) schema.default = field.default;
    if (field.one_of) return { ...schema, enum: field.one_of };
    switch (field.type) {
      case 'integer': case 'number': return { ...schema, type: field.type, ...(field.between ? { minimum: field.between[0], maximum: field.between[1] } : {}) };
      case 'boolean': return { ...schema, type: 'boolean' };
      case 'string': return { ...schema, type: 'string' };
      case 'array': case 'set': return { ...schema, type: 'array', items: of(field.elements ?? { type: 'string' }) };
      case 'map': return { ...schema, type: 'object', additionalProperties: of(field.values ?? { type: 'string' }) };
      case 'record': return { ...schema, ...record(field) };
      case 'foreign': return { ...schema, type: 'object', properties: { id: { type: 'string' }, name: { type: 'string' } } };
      default: return schema;
    }
  };
  const record = (found: Json): Schema => {
    const entries: [string, Json][] = (found.fields ?? []).flatMap((field: Json) => Object.entries(field));
    return {
      type: 'object',
      properties: Object.fromEntries(entries.filter(([field]) => !KEPT.includes(field)).map(([field, found]) => [field, of(found)])),
      required: entries.filter(([field, found]) => found.required && found.default === undefined && !KEPT.includes(field)).map(([field]) => field),
    };
  };
  return record(kong);
}

export function KongEntity({ kind, id }: { kind: string; id?: string }) {
  const info = KONG.find((one) => one.kind === kind);
  const { data, error, reload } = useLoad(async () => (id ? get(`/${kind}/${encodeURIComponent(id)}`) : null), [kind, id]);
  const schema = useLoad(async () => {
    const own = schemaOf(await get(`/schemas/${kind}`));
    if (kind === 'plugins' && data?.name) {
      const plugin = await get(`/schemas/plugins/${data.name}`).catch(() => null);
      const config = plugin?.fields?.find((field: Json) => field.config)?.config;
      if (config) own.properties.config = schemaOf(config);
    }
    return own;
  }, [kind, data?.name]);
  if (!info) return <Notice tone="warn" title={`There is no kind ${kind}`} />;
  if (error && !data) return <Page title={id}><Card><Empty icon={info.icon} title={error.message}><a class="button" href={href(['list', kind])}>All {info.label.toLowerCase()}</a></Empty></Card></Page>;
  if (id && !data) return <Loading />;
  return <Editor key={`${data?.id} ${data?.updated_at}`} info={info} stored={data ?? undefined} schema={schema.data} onDone={reload} />;
}

function Editor({ info, stored, schema, onDone }: { info: KongKind; stored?: Json; schema?: Schema; onDone: () => void }) {
  const before = useMemo(() => (stored ? bare(stored) : undefined), [stored]);
  const [value, setValue] = useState<Json>(before ?? info.blank);
  const [tab, setTab] = useState<'form' | 'document'>('form');
  const [wrong, setWrong] = useState('');
  const [reviewing, setReviewing] = useState(false);
  const refused = refusal(info.kind);
  const changed = !stored || !equal(before, value);
  const write = async () => {
    if (!stored) return (await request('POST', `/${info.kind}`, value)).body;
    // What was taken out of the document goes back to its default.
    const gone = Object.fromEntries(Object.keys(before ?? {}).filter((field) => !(field in value)).map((field) => [field, null]));
    return (await request('PATCH', `/${info.kind}/${stored.id}`, { ...gone, ...value })).body;
  };
  const remove = async () => {
    if (!confirm(`Delete the ${info.one} ${title(stored)}?`)) return;
    try {
      await request('DELETE', `/${info.kind}/${stored.id}`);
      toast('Deleted');
      void refreshAbout();
      go(['list', info.kind]);
    } catch (fault) {
      toast(asApiError(fault).message, 'bad');
    }
  };
  return (
    <Page title={<><a class="crumb" href={href(['list', info.kind])}>{info.label}</a><span class="crumb-sep">/</span>{stored ? title(stored) : `New ${info.one}`}</>}
      hint={stored && <>{stored.id}, changed {ago(stored.updated_at ?? stored.created_at)} {stored.enabled === false && <Badge tone="warn">off</Badge>}</>}
      actions={!refused && <>
        {stored && <Button icon="trash" tone="danger" onClick={() => void remove()}>Delete</Button>}
        {stored && changed && <Button icon="undo" onClick={() => setValue(before)}>Undo</Button>}
        <Button tone="primary" icon="check" disabled={!changed || !!wrong} onClick={() => setReviewing(true)}>{stored ? 'Review and save' : 'Create'}</Button>
      </>}>
      {refused && <Notice title="Read only">{refused}</Notice>}
      <Tabs current={tab} onChoose={setTab} tabs={[{ id: 'form', label: 'Form' }, { id: 'document', label: 'Document' }]} />
      <Card class="padded">
        {tab === 'form' ? (schema ? <ObjectForm schema={schema} root={schema} value={value} onChange={setValue} scope="resource" disabled={!!refused} /> : <Loading />)
          : <Document value={value} readOnly={!!refused} onChange={(next, error) => { setWrong(error); if (!error) setValue(next); }} />}
      </Card>
      {stored && <Owned kind={info.kind} id={stored.id} refused={!!refused} />}
      {reviewing && <Review title={stored ? `Save ${info.one} ${title(stored)}` : `Create ${info.one}`} before={before} now={value} read={async () => bare(await get(`/${info.kind}/${stored.id}`))} write={write}
        onClose={() => setReviewing(false)} onTheirs={() => { setReviewing(false); onDone(); }}
        onSaved={(saved) => { setReviewing(false); toast('Saved'); void refreshAbout(); if (stored) onDone(); else go(['entity', info.kind, saved.id]); }} />}
    </Page>
  );
}

function Document({ value, readOnly, onChange }: { value: Json; readOnly: boolean; onChange: (value: Json, error: string) => void }) {
  const [typed, setTyped] = useState(() => JSON.stringify(value, null, 2));
  const [error, setError] = useState('');
  const type = (next: string) => {
    setTyped(next);
    try {
      onChange(JSON.parse(next), '');
      setError('');
    } catch (fault) {
      setError((fault as Error).message);
      onChange(undefined, (fault as Error).message);
    }
  };
  return (
    <>
      <textarea class="input mono editor" aria-label="Document as JSON" rows={Math.max(14, typed.split('\n').length + 1)} spellcheck={false} readOnly={readOnly} value={typed} onInput={(event) => type(event.currentTarget.value)} />
      {error && <p class="error-text" role="alert">{error}</p>}
    </>
  );
}

/** Something that belongs to an entity and has no page of its own. */
interface Part {
  path: string;
  label: string;
  one: string;
  hint: string;
  /** Fields of a new one, with what stands in them at first. */
  fields: Record<string, string>;
  /** Fields that are shown masked: whoever may see them presses a button. */
  secret?: string;
  columns: (value: Json) => string[];
}

const CREDENTIALS: Part[] = [
  { path: 'key-auth', label: 'Keys (key-auth)', one: 'key', hint: 'Without a key one is made.', fields: { key: '' }, secret: 'key', columns: () => [] },
  { path: 'basic-auth', label: 'Passwords (basic-auth)', one: 'password', hint: 'A password is kept as a hash.', fields: { username: '', password: '' }, columns: (v) => [v.username] },
  { path: 'jwt', label: 'Tokens (jwt)', one: 'credential for tokens', hint: 'The key is the claim that names it. Without a secret one is made.', fields: { key: '', algorithm: 'HS256', secret: '' }, secret: 'secret', columns: (v) => [v.key, v.algorithm] },
  { path: 'hmac-auth', label: 'Signatures (hmac-auth)', one: 'credential for signatures', hint: 'Without a secret one is made.', fields: { username: '', secret: '' }, secret: 'secret', columns: (v) => [v.username] },
  { path: 'acls', label: 'Groups (acl)', one: 'group', hint: 'Groups that acl allows or denies.', fields: { group: '' }, columns: (v) => [v.group] },
];
const TARGETS: Part = { path: 'targets', label: 'Targets', one: 'target', hint: 'HOST:PORT, and its weight among the others; 0 gets no requests.', fields: { target: '127.0.0.1:8080', weight: '100' }, columns: (v) => [v.target, `weight ${v.weight}`] };

/** What belongs to an entity: targets, credentials, and links to routes and plugins. */
function Owned({ kind, id, refused }: { kind: string; id: string; refused: boolean }) {
  if (kind === 'upstreams') return <Parts owner={`/upstreams/${id}`} part={TARGETS} refused={refused} />;
  return (
    <>
      {kind === 'services' && <Links path={`/services/${id}/routes`} kind="routes" label="Routes" />}
      {kind === 'consumers' && CREDENTIALS.map((part) => <Parts key={part.path} owner={`/consumers/${id}`} part={part} refused={refused} />)}
      {['services', 'routes', 'consumers'].includes(kind) && <Links path={`/${kind}/${id}/plugins`} kind="plugins" label="Plugins" />}
    </>
  );
}

function Links({ path, kind, label }: { path: string; kind: string; label: string }) {
  const { data } = useLoad(() => get(path + query({ size: SIZE })), [path]);
  if (!data?.data?.length) return null;
  return (
    <Card title={label} class="padded">
      <ul class="plain">{data.data.map((one: Json) => <li key={one.id}><a href={href(['entity', kind, one.id])}>{title(one)}</a>{one.enabled === false && <> <Badge tone="warn">off</Badge></>}</li>)}</ul>
      {data.offset && <p class="hint">The first {SIZE}.</p>}
    </Card>
  );
}

const HEALTH: Record<string, 'good' | 'bad' | 'plain'> = { HEALTHY: 'good', UNHEALTHY: 'bad', DNS_ERROR: 'bad' };

function Parts({ owner, part, refused }: { owner: string; part: Part; refused: boolean }) {
  const { data, error, reload } = useLoad(() => get(`${owner}/${part.path}` + query({ size: 1000 })), [owner, part.path]);
  // The health of targets is of another call.
  const health = useLoad<Json>(async () => (part === TARGETS ? get(`${owner}/health?size=1000`) : null), [owner, part.path, data]);
  const [adding, setAdding] = useState(false);
  const [shown, setShown] = useState('');
  const act = async (work: () => Promise<unknown>, done: string) => {
    try {
      await work();
      toast(done);
      reload();
      return true;
    } catch (fault) {
      toast(asApiError(fault).message, 'bad');
      return false;
    }
  };
  const remove = (one: Json) => {
    if (confirm(`Delete the ${part.one} ${part.columns(one)[0] ?? one.id}?`)) void act(() => request('DELETE', `${owner}/${part.path}/${one.id}`), 'Deleted');
  };
  const all: Json[] = data?.data ?? [];
  const healthOf = (one: Json) => health.data?.data?.find((other: Json) => other.target === one.target)?.health;
  return (
    <Card title={part.label} class="flush" actions={!refused && <Button icon="plus" onClick={() => setAdding(true)}>Add</Button>}>
      {error && <Failure error={error} />}
      {data && !all.length && <p class="hint padded">No {part.one} yet.</p>}
      {all.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label={part.label}>
          <table>
            <tbody>
              {all.map((one) => (
                <tr key={one.id}>
                  {part.columns(one).map((column) => <td key={column}>{column}</td>)}
                  {part.secret && <td>{shown === one.id ? <code class="secret">{one[part.secret]}</code> : refused ? '••••••' : <Button tone="quiet" onClick={() => setShown(one.id)}>Show the {part.secret}</Button>}</td>}
                  {part === TARGETS && <td>{healthOf(one) && <Badge tone={HEALTH[healthOf(one)] ?? 'plain'}>{healthOf(one).toLowerCase().replace('_', ' ')}</Badge>}</td>}
                  <td class="num">{ago(one.created_at)} {!refused && <Button icon="trash" tone="quiet" title={`Delete the ${part.one} ${part.columns(one)[0] ?? one.id}`} onClick={() => remove(one)} />}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {adding && <Adding part={part} onClose={() => setAdding(false)} onAdd={async (fields) => { if (await act(() => request('POST', `${owner}/${part.path}`, fields), 'Added')) setAdding(false); }} />}
    </Card>
  );
}

function Adding({ part, onClose, onAdd }: { part: Part; onClose: () => void; onAdd: (fields: Json) => Promise<void> }) {
  const [typed, setTyped] = useState(part.fields);
  const [busy, setBusy] = useState(false);
  const add = async () => {
    setBusy(true);
    const given = Object.entries(typed).filter(([, text]) => text !== '');
    await onAdd(Object.fromEntries(given.map(([field, text]) => [field, field === 'weight' ? Number(text) : text])));
    setBusy(false);
  };
  return (
    <Dialog title={`Add a ${part.one}`} onClose={onClose} actions={<><Button onClick={onClose}>Back</Button><Button tone="primary" icon="check" busy={busy} onClick={() => void add()}>Add</Button></>}>
      <p class="hint">{part.hint}</p>
      {Object.keys(part.fields).map((field) => (
        <Field key={field} label={field}>
          {(id, about) => {
            const own = { id, 'aria-describedby': about, class: 'input', value: typed[field], onInput: (event: { currentTarget: HTMLInputElement }) => setTyped({ ...typed, [field]: event.currentTarget.value }) };
            return field === 'password' ? <input type="password" autocomplete="new-password" {...own} /> : <input type="text" autocomplete="off" {...own} />;
          }}
        </Field>
      ))}
    </Dialog>
  );
}
