import { useState } from 'preact/hooks';
import { about, ApiError, get, refreshAbout, refusal, request, resourcePath, type Json, type Resource } from '../api';
import { asApiError, Badge, Button, Card, Chips, copy, Dialog, Empty, Failure, Field, Loading, Notice, Page, toast, useLoad, useStore } from '../controls';
import { ago, count } from '../format';
import { href, resourceHref } from '../router';

/** Plans with limits that can be moved, and keys that can be given out and taken back. */
export function Keys() {
  const revision = useStore(about)?.revision;
  const plans = useLoad(() => get<{ resources: Resource[] }>('/weir/v1/resources?kind=plans&page_size=500'), [revision]);
  const keys = useLoad(() => get('/weir/v1/keys'), [revision]);
  const [issuing, setIssuing] = useState(false);
  const [shown, setShown] = useState<Json>(null);
  const [text, setText] = useState('');
  const refused = refusal('credentials');
  const all: Json[] = keys.data?.keys ?? [];
  const found = all.filter((key) => JSON.stringify(key).toLowerCase().includes(text.toLowerCase()));
  const change = async (key: Json, body: Json, done: string) => {
    try {
      const answer = await request('PATCH', `/weir/v1/keys/${encodeURIComponent(key.consumer)}/${encodeURIComponent(key.id)}`, body);
      if (answer.body.key) setShown(answer.body);
      toast(done);
      void refreshAbout();
    } catch (error) {
      toast(asApiError(error).message, 'bad');
    }
  };
  const revoke = async (key: Json) => {
    if (!confirm(`Take back the key ${key.id} of ${key.consumer}? Calls with it are refused at once.`)) return;
    try {
      await request('DELETE', `/weir/v1/keys/${encodeURIComponent(key.consumer)}/${encodeURIComponent(key.id)}`);
      toast('Taken back');
      void refreshAbout();
    } catch (error) {
      toast(asApiError(error).message, 'bad');
    }
  };
  return (
    <Page title="Plans and keys" hint="Who may call how much. A moved limit holds with the next request."
      actions={!refused && <Button tone="primary" icon="plus" onClick={() => setIssuing(true)}>Give out a key</Button>}>
      {refused && <Notice title="Read only">{refused}</Notice>}
      <section class="plans" aria-label="Plans">
        {(plans.data?.resources ?? []).map((plan) => <Plan key={`${plan.key} ${plan.modified}`} plan={plan} />)}
        {plans.data && !plans.data.resources.length && <Card><Empty icon="plans" title="No plan yet">{!refused && <a class="button" href={href(['new', 'plans'])}>Create one</a>}</Empty></Card>}
      </section>
      <Card title="Keys" class="flush" actions={<input class="input search-small" type="search" placeholder="Filter keys" aria-label="Filter keys" value={text} onInput={(event) => setText(event.currentTarget.value)} />}>
        {keys.error && <Failure error={keys.error} />}
        {!keys.data && !keys.error && <Loading />}
        {keys.data && (found.length ? (
          <div class="scroll" tabIndex={0} role="region" aria-label="Table">
            <table>
              <thead><tr><th>Consumer</th><th>Key</th><th>Plugin</th><th>Plans</th><th>State</th><th class="num">Changed</th><th><span class="sr">Actions</span></th></tr></thead>
              <tbody>
                {found.slice(0, 500).map((key) => {
                  const suspended = key.plan?.suspended === true;
                  return (
                    <tr key={`${key.consumer}/${key.id}`}>
                      <td><a href={resourceHref(`consumers/${key.consumer}`)}>{key.consumer}</a></td>
                      <td><a href={resourceHref(`consumers/${key.consumer}/credentials/${key.id}`)}>{key.id}</a>{(key.name || key.desc) && <div class="hint">{key.name ?? key.desc}</div>}</td>
                      <td>{key.plugin}</td>
                      <td>{key.plan?.plans ? <Chips items={key.plan.plans} /> : <span class="faint">of its consumer</span>}</td>
                      <td>{suspended ? <Badge tone="bad">suspended</Badge> : <Badge tone="good">works</Badge>}</td>
                      <td class="num">{ago(key.update_time)}</td>
                      <td class="row-actions">
                        {!refused && <>
                          {key.plan && <Button tone="quiet" onClick={() => void change(key, { plan: { ...key.plan, suspended: !suspended } }, suspended ? 'It works again' : 'Suspended')}>{suspended ? 'Resume' : 'Suspend'}</Button>}
                          {key.plugin === 'key-auth' && <Button tone="quiet" onClick={() => { if (confirm('Replace the key by a new one? The old one stops working at once.')) void change(key, { renew: true }, 'Renewed'); }}>Renew</Button>}
                          <Button tone="quiet" icon="trash" title={`Take back ${key.id}`} onClick={() => void revoke(key)} />
                        </>}
                      </td>
                    </tr>
                  );
                })}
              </tbody>
            </table>
          </div>
        ) : <Empty icon="keys" title={all.length ? 'No key fits' : 'No key yet'} />)}
      </Card>
      {issuing && <Issue plans={(plans.data?.resources ?? []).map((plan) => plan.key.slice(6))} onClose={() => setIssuing(false)} onIssued={(issued) => { setIssuing(false); setShown(issued); void refreshAbout(); }} />}
      {shown && (
        <Dialog title="The key is shown this once" onClose={() => setShown(null)} actions={<Button tone="primary" onClick={() => setShown(null)}>I have it</Button>}>
          <p>Key <strong>{shown.id}</strong> of {shown.consumer}. Only its digest, or its encrypted form, can be read later.</p>
          <div class="pair"><code class="secret">{shown.key}</code><Button icon="copy" onClick={() => void copy(shown.key)}>Copy</Button></div>
        </Dialog>
      )}
    </Page>
  );
}

function Plan({ plan }: { plan: Resource }) {
  const [limits, setLimits] = useState<Json[]>(plan.value.limits ?? []);
  const [error, setError] = useState<ApiError>();
  const [busy, setBusy] = useState(false);
  const refused = refusal('plans');
  const changed = JSON.stringify(limits) !== JSON.stringify(plan.value.limits ?? []);
  const save = async () => {
    setBusy(true);
    setError(undefined);
    try {
      await request('PUT', resourcePath(plan.key), { ...plan.value, limits }, { 'If-Match': `"${plan.modified}"` });
      toast(`The plan ${plan.key.slice(6)} holds with the next request`);
      void refreshAbout();
    } catch (fault) {
      const wrong = asApiError(fault);
      setError(wrong);
      if (wrong.status === 412) void refreshAbout();
    } finally {
      setBusy(false);
    }
  };
  return (
    <Card class="plan">
      <header class="card-head"><h2><a href={resourceHref(plan.key)}>{plan.value.name ?? plan.key.slice(6)}</a></h2>{plan.value.desc && <span class="hint">{plan.value.desc}</span>}</header>
      {limits.map((limit, at) => (
        <div class="limit" key={at}>
          <label><span class="sr">Requests a {limit.per}</span><input class="input" type="number" min={0} value={limit.count} disabled={!!refused} onInput={(event) => setLimits(limits.map((one, n) => (n === at ? { ...one, count: Number(event.currentTarget.value) } : one)))} /></label>
          <span>a {limit.per}{limit.window && limit.window !== 'fixed' && <span class="hint">, {limit.window}</span>}{limit.scope && limit.scope !== 'plan' && <span class="hint">, each {limit.scope}</span>}</span>
        </div>
      ))}
      {!limits.length && <p class="hint">No limit.</p>}
      <p class="hint">{plan.value.access ? `Includes ${plan.value.access.flatMap((one: Json) => [...(one.services ?? []), ...(one.routes ?? [])]).join(', ') || 'some requests'}` : 'Includes everything'}</p>
      {error && <Failure error={error} />}
      {changed && <div class="actions"><Button onClick={() => setLimits(plan.value.limits ?? [])}>Undo</Button><Button tone="primary" busy={busy} onClick={() => void save()}>Save {limits.map((limit) => count(limit.count)).join(', ')}</Button></div>}
    </Card>
  );
}

function Issue({ plans, onClose, onIssued }: { plans: string[]; onClose: () => void; onIssued: (issued: Json) => void }) {
  const [consumer, setConsumer] = useState('');
  const [id, setId] = useState('');
  const [desc, setDesc] = useState('');
  const [chosen, setChosen] = useState<string[]>([]);
  const [error, setError] = useState<ApiError>();
  const [busy, setBusy] = useState(false);
  const consumers = useLoad(() => get<{ resources: Resource[] }>(`/weir/v1/resources?kind=consumers&page_size=20&q=${encodeURIComponent(consumer)}`), [consumer]);
  const issue = async (event?: Event) => {
    event?.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      const body = { consumer, ...(id ? { id } : {}), ...(desc ? { desc } : {}), ...(chosen.length ? { plan: { plans: chosen } } : {}) };
      onIssued((await request('POST', '/weir/v1/keys', body)).body);
    } catch (fault) {
      setError(asApiError(fault));
      setBusy(false);
    }
  };
  return (
    <Dialog title="Give out a key" onClose={onClose} actions={<><Button onClick={onClose}>Back</Button><Button tone="primary" busy={busy} disabled={!consumer} onClick={() => void issue()}>Give out</Button></>}>
      <form onSubmit={issue} class="form">
        {error && <Failure error={error} />}
        <Field label="Consumer">{(field) => <><input class="input" id={field} list="consumers" autoFocus value={consumer} spellcheck={false} onInput={(event) => setConsumer(event.currentTarget.value)} /><datalist id="consumers">{(consumers.data?.resources ?? []).map((one) => <option key={one.key} value={one.key.slice(10)} />)}</datalist></>}</Field>
        <Field label="Id of the key" hint="made by the gateway if empty">{(field, about) => <input class="input" id={field} aria-describedby={about} value={id} spellcheck={false} onInput={(event) => setId(event.currentTarget.value)} />}</Field>
        <Field label="Description">{(field) => <input class="input" id={field} value={desc} onInput={(event) => setDesc(event.currentTarget.value)} />}</Field>
        {plans.length > 0 && (
          <fieldset class="field"><legend>Plans</legend>
            <div class="chips">{plans.map((plan) => <label key={plan} class={`toggle ${chosen.includes(plan) ? 'on' : ''}`}><input type="checkbox" class="sr" checked={chosen.includes(plan)} onChange={() => setChosen(chosen.includes(plan) ? chosen.filter((one) => one !== plan) : [...chosen, plan])} />{plan}</label>)}</div>
            <div class="field-hint">none: those of the consumer</div>
          </fieldset>
        )}
        <button class="sr" type="submit" tabIndex={-1} aria-hidden="true">Give out</button>
      </form>
    </Dialog>
  );
}
