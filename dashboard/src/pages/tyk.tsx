// APIs, policies and keys of Tyk's family, over Tyk's own gateway API.
import { useState } from 'preact/hooks';
import { get, request, session, type Json } from '../api';
import { asApiError, Badge, Button, Card, Chips, Dialog, Empty, Failure, Loading, Notice, Page, Tabs, toast, useLoad, useStore } from '../controls';
import { ObjectForm } from '../form';
import { Icon } from '../icons';
import { go, href, setQuery, usePlace } from '../router';
import { tykSchema } from '../tyk-schema';
import { Review } from './review';

interface TykKind {
  kind: string;
  label: string;
  one: string;
  icon: string;
  group: 'Traffic' | 'Callers';
  hint: string;
  blank: Json;
  columns: { label: string; of: (value: Json) => string | string[] }[];
}

const limit = (value: Json) => [
  value.rate > 0 && value.per > 0 ? `${value.rate} in ${value.per} s` : '',
  value.quota_max > 0 ? `${value.quota_max} in ${value.quota_renewal_rate > 0 ? `${value.quota_renewal_rate} s` : 'all'}` : '',
].filter(Boolean);
const ways = (api: Json) => (api.use_keyless ? 'keyless' : [api.use_basic_auth && 'basic', api.enable_jwt && 'JWT', api.use_oauth2 && 'OAuth2', api.enable_signature_checking && 'HMAC'].filter(Boolean).join(', ') || 'token');

export const TYK: TykKind[] = [
  { kind: 'apis', label: 'APIs', one: 'API', icon: 'routes', group: 'Traffic', hint: 'API definitions: a listen path, a target, and who may call. Changes are written to the files, and hold after the reload.',
    blank: { name: '', api_id: '', org_id: '', use_keyless: true, version_data: { not_versioned: true, versions: { Default: { name: 'Default' } } }, proxy: { listen_path: '/', target_url: 'http://127.0.0.1:8080/', strip_listen_path: true } },
    columns: [{ label: 'Listen path', of: (v) => v.proxy?.listen_path ?? '' }, { label: 'Target', of: (v) => v.proxy?.target_url ?? '' }, { label: 'Authentication', of: ways }] },
  { kind: 'policies', label: 'Policies', one: 'policy', icon: 'plans', group: 'Callers', hint: 'Limits and rights that keys take over.',
    blank: { id: '', org_id: '', rate: 100, per: 1, quota_max: -1, access_rights: {} },
    columns: [{ label: 'Limits', of: limit }, { label: 'APIs', of: (v) => Object.keys(v.access_rights ?? {}) }] },
  { kind: 'keys', label: 'Keys', one: 'key', icon: 'keys', group: 'Callers', hint: 'Who may call: sessions of keys, by their names. A change holds with the next request.',
    blank: { org_id: '', rate: 100, per: 1, quota_max: -1, access_rights: {} }, columns: [] },
];

const path = (kind: string, id = '') => `/weir/v1/tyk/${kind}${id && `/${encodeURIComponent(id)}`}`;
const idOf = (kind: string, value: Json): string => (kind === 'apis' ? value.api_id : kind === 'policies' ? value.id ?? value._id : value) ?? '';

/** The reason why this browser may not change a kind; null where it may. */
function refusal(kind: string): string | null {
  const role = session.value?.role;
  if (role === 'admin' || (role === 'operator' && kind === 'keys')) return null;
  return `The role ${role} does not change ${kind}.`;
}

export function TykList({ kind }: { kind: string }) {
  const info = TYK.find((one) => one.kind === kind)!;
  useStore(session);
  const [words, setWords] = useState('');
  const { data, error } = useLoad(() => get(path(kind)), [kind]);
  const refused = refusal(kind);
  const all: Json[] = kind === 'keys' ? data?.keys ?? [] : data ?? [];
  const found = all.filter((one) => JSON.stringify(one).toLowerCase().includes(words.toLowerCase()));
  return (
    <Page title={info.label} hint={info.hint} actions={refused ? <span class="read-only"><Icon name="lock" size={15} /> read only</span> : <a class="button primary" href={href(['new', kind])}><Icon name="plus" size={16} />New {info.one}</a>}>
      <Card class="flush">
        <div class="toolbar"><label class="search"><Icon name="search" size={16} /><span class="sr">Search</span><input data-search type="search" placeholder="Search  ( / )" value={words} onInput={(event) => setWords(event.currentTarget.value)} /></label></div>
        {error && <Failure error={error} />}
        {!data && !error && <Loading />}
        {data && !found.length && <Empty icon={info.icon} title={words ? `Nothing has “${words}” in it` : `No ${info.one} yet`} />}
        {found.length > 0 && (
          <div class="scroll" tabIndex={0} role="region" aria-label="Table">
            <table>
              <thead><tr><th>Name</th>{info.columns.map((column) => <th key={column.label}>{column.label}</th>)}</tr></thead>
              <tbody>
                {found.slice(0, 1000).map((one) => (
                  <tr key={idOf(kind, one)}>
                    <td class="id"><a href={href(['entity', kind, idOf(kind, one)])}>{typeof one === 'string' ? one : one.name || idOf(kind, one)}</a>{one.name && <div class="hint">{idOf(kind, one)}</div>}</td>
                    {info.columns.map((column) => <td key={column.label}><Chips items={column.of(one)} /></td>)}
                  </tr>
                ))}
              </tbody>
            </table>
            {found.length > 1000 && <p class="hint padded">The first 1,000 of {found.length}: search for others.</p>}
          </div>
        )}
      </Card>
    </Page>
  );
}

export function TykEntity({ kind, id }: { kind: string; id?: string }) {
  const info = TYK.find((one) => one.kind === kind)!;
  // Keys are named by their hashes where keys are hashed.
  const hashed = kind === 'keys' ? '?hashed=true' : '';
  const { data, error, reload } = useLoad(async () => (id ? get(path(kind, id) + hashed) : null), [kind, id]);
  if (error && !data) return <Page title={id}><Card><Empty icon={info.icon} title={error.message}><a class="button" href={href(['list', kind])}>All {info.label}</a></Empty></Card></Page>;
  if (id && !data) return <Loading />;
  return <Editor key={JSON.stringify(data)} info={info} id={id} stored={data ?? undefined} query={hashed} onDone={reload} />;
}

function Editor({ info, id, stored, query, onDone }: { info: TykKind; id?: string; stored?: Json; query: string; onDone: () => void }) {
  const before = stored ?? info.blank;
  const [typed, setTyped] = useState(() => JSON.stringify(before, null, 2));
  const [reviewing, setReviewing] = useState(false);
  const [busy, setBusy] = useState(false);
  const [made, setMade] = useState('');
  const refused = refusal(info.kind);
  let value: Json;
  let wrong = '';
  try {
    value = JSON.parse(typed);
  } catch (fault) {
    wrong = (fault as Error).message;
  }
  const place = usePlace();
  const tab = place.query.get('tab') === 'document' ? 'document' : 'form';
  const schema = tykSchema(info.kind);
  const changed = !stored || JSON.stringify(value) !== JSON.stringify(before);
  const act = async (work: () => Promise<Json>, done: string, next: (answer: Json) => void) => {
    setBusy(true);
    try {
      const answer = await work();
      if (info.kind !== 'keys') await get('/weir/v1/tyk/reload?block=true');
      toast(done);
      next(answer);
    } catch (fault) {
      toast(asApiError(fault).message, 'bad');
    } finally {
      setBusy(false);
    }
  };
  const write = async () => {
    const saved = (await request(stored ? 'PUT' : 'POST', stored ? path(info.kind, id) + query : path(info.kind, info.kind === 'keys' ? 'create' : ''), value)).body;
    if (info.kind !== 'keys') await get('/weir/v1/tyk/reload?block=true');
    return saved;
  };
  // What requests count is no change of somebody else's.
  const read = async () => {
    const current = await get(path(info.kind, id) + query);
    for (const field of ['quota_remaining', 'quota_renews', 'last_updated']) if (stored && field in stored) current[field] = stored[field];
    return current;
  };
  const saved = (answer: Json) => {
    setReviewing(false);
    toast('Saved');
    if (stored) onDone();
    else if (info.kind === 'keys') setMade(answer.key);
    else go(['entity', info.kind, answer.key ?? idOf(info.kind, value)]);
  };
  const remove = () => {
    if (confirm(`Delete the ${info.one} ${id}?`)) void act(() => request('DELETE', path(info.kind, id) + query), 'Deleted', () => go(['list', info.kind]));
  };
  return (
    <Page title={<><a class="crumb" href={href(['list', info.kind])}>{info.label}</a><span class="crumb-sep">/</span>{stored ? stored.name || id : `New ${info.one}`}</>}
      hint={stored && <>{id} {stored.is_inactive && <Badge tone="bad">inactive</Badge>}</>}
      actions={!refused && <>
        {stored && <Button icon="trash" tone="danger" busy={busy} onClick={remove}>Delete</Button>}
        <Button tone="primary" icon="check" disabled={!changed || !!wrong} onClick={() => setReviewing(true)}>{stored ? 'Review and save' : 'Create'}</Button>
      </>}>
      {refused && <Notice title="Read only">{refused}</Notice>}
      <Tabs current={tab} onChoose={(next) => setQuery({ tab: next === 'form' ? '' : next })} tabs={[{ id: 'form', label: 'Form' }, { id: 'document', label: 'Document' }]} />
      <Card class="padded">
        {tab === 'document' && <textarea class="input mono editor" aria-label="Document as JSON" rows={Math.max(14, typed.split('\n').length + 1)} spellcheck={false} readOnly={!!refused} value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />}
        {tab === 'form' && !wrong && <ObjectForm top named schema={schema} root={schema} value={value} disabled={!!refused} scope="resource" onChange={(next) => setTyped(JSON.stringify(next, null, 2))} />}
        {wrong && <p class="error-text" role="alert">{tab === 'form' && 'The document is no JSON: '}{wrong}</p>}
      </Card>
      {reviewing && <Review title={stored ? `Save ${info.one} ${id}` : `Create ${info.one}`} before={stored} now={value} read={read} write={write}
        onClose={() => setReviewing(false)} onTheirs={() => { setReviewing(false); onDone(); }} onSaved={saved} />}
      {made && (
        <Dialog title="The key is shown this once" onClose={() => go(['list', 'keys'])} actions={<Button tone="primary" onClick={() => go(['list', 'keys'])}>I have it</Button>}>
          <code class="secret">{made}</code>
        </Dialog>
      )}
    </Page>
  );
}
