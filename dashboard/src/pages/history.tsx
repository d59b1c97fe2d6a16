import { useEffect, useState } from 'preact/hooks';
import { about, ApiError, get, query, refreshAbout, refusal, request, type Json } from '../api';
import { asApiError, Badge, Button, Card, Dialog, Diff, Empty, Failure, Loading, Notice, Page, toast, useLoad, useStore } from '../controls';
import { bare } from '../diff';
import { ago, time } from '../format';
import { href, resourceHref, setQuery, usePlace } from '../router';
import { summary } from './overview';

const SIZE = 40;

export function History() {
  const place = usePlace();
  const chosen = Number(place.query.get('revision') ?? 0);
  const info = useStore(about);
  const [older, setOlder] = useState<Json[]>([]);
  const [more, setMore] = useState(true);
  const [rollback, setRollback] = useState<number | null>(null);
  const [compare, setCompare] = useState<number | null>(null);
  const { data, error } = useLoad(() => get('/weir/v1/history' + query({ limit: SIZE, before: chosen ? chosen + 1 : undefined })), [info?.revision, chosen]);
  const commits: Json[] = [...(data?.commits ?? []), ...older];
  useEffect(() => setOlder([]), [data]);
  const load = async () => {
    const next = await get('/weir/v1/history' + query({ limit: SIZE, before: commits.at(-1).revision }));
    setOlder([...older, ...next.commits]);
    setMore(next.commits.length === SIZE);
  };
  return (
    <Page title="History" hint="Every change, by whom, and the way back."
      actions={chosen ? <Button onClick={() => setQuery({})}>Show the latest</Button> : undefined}>
      {error && <Card><Empty icon="history" title="Earlier versions are not kept here">{error.message}</Empty></Card>}
      {!data && !error && <Loading />}
      {data && !commits.length && <Card><Empty icon="history" title="No change yet" /></Card>}
      <ol class="commits">
        {commits.map((commit, at) => (
          <CommitCard key={commit.revision} commit={commit} open={commit.revision === chosen || (!chosen && at === 0)} current={info?.revision}
            onRollback={() => setRollback(commit.revision)} onCompare={() => setCompare(commit.revision)} />
        ))}
      </ol>
      {data && more && commits.length >= SIZE && <Button onClick={() => void load()}>Older changes</Button>}
      {rollback !== null && <Rollback revision={rollback} onClose={() => setRollback(null)} />}
      {compare !== null && <Comparison from={compare} onClose={() => setCompare(null)} />}
    </Page>
  );
}

function CommitCard({ commit, open: atFirst, current, onRollback, onCompare }: { commit: Json; open: boolean; current?: number; onRollback: () => void; onCompare: () => void }) {
  const [open, setOpen] = useState(atFirst);
  const refused = refusal('routes');
  return (
    <li class="commit">
      <div class="commit-head">
        <button type="button" class="commit-title" aria-expanded={open} onClick={() => setOpen(!open)}>
          <Badge tone={commit.revision === current ? 'accent' : 'plain'}>{commit.revision}</Badge>
          <span>{summary(commit)}</span>
        </button>
        <span class="hint" title={commit.time ? time(commit.time) : ''}>{commit.author ?? ''} {commit.time ? ago(commit.time) : ''}</span>
        <span class="actions">
          <Button tone="quiet" onClick={onCompare}>Compare</Button>
          {!refused && commit.revision !== current && <Button icon="undo" tone="quiet" onClick={onRollback}>Back to here</Button>}
        </span>
      </div>
      {open && <Changes changes={commit.changes} />}
    </li>
  );
}

function Changes({ changes }: { changes: Json[] }) {
  const [shown, setShown] = useState(20);
  if (!changes.length) return <p class="hint">No difference.</p>;
  return (
    <>
      {changes.slice(0, shown).map((change) => (
        <div class="change" key={change.key}>
          <a href={resourceHref(change.key)}><code>{change.key}</code></a>
          {change.omitted ? <p class="hint">Too long to be shown here.</p> : <Diff old={bare(change.old)} now={bare(change.new)} />}
        </div>
      ))}
      {changes.length > shown && <Button onClick={() => setShown(shown + 100)}>{changes.length - shown} more resources</Button>}
    </>
  );
}

function Comparison({ from, onClose }: { from: number; onClose: () => void }) {
  const [to, setTo] = useState<number | ''>('');
  const { data, error } = useLoad(() => get('/weir/v1/diff' + query({ from, to })), [from, to]);
  return (
    <Dialog wide title={`From revision ${from}`} onClose={onClose}>
      <label class="inline">to revision <input class="input short" type="number" min={1} placeholder="now" value={to} onInput={(event) => setTo(event.currentTarget.value === '' ? '' : Number(event.currentTarget.value))} /></label>
      {error && <Failure error={error} />}
      {data ? <Changes changes={data.changes} /> : !error && <Loading />}
    </Dialog>
  );
}

function Rollback({ revision, onClose }: { revision: number; onClose: () => void }) {
  const tried = useLoad(async () => (await request('POST', '/weir/v1/rollback?dry_run=true', { revision })).body, [revision]);
  const [error, setError] = useState<ApiError>();
  const [busy, setBusy] = useState(false);
  const run = async () => {
    setBusy(true);
    try {
      const { body } = await request('POST', '/weir/v1/rollback', { revision });
      toast(`Everything is as it was at revision ${revision}; this is revision ${body.revision}`);
      await refreshAbout();
      onClose();
    } catch (fault) {
      setError(asApiError(fault));
      setBusy(false);
    }
  };
  const fault = error ?? tried.error;
  return (
    <Dialog wide title={`Back to revision ${revision}`} onClose={onClose}
      actions={<><Button onClick={onClose}>Leave it</Button><Button tone="primary" icon="undo" busy={busy} disabled={!tried.data || !!fault || !tried.data.changes.length} onClick={() => void run()}>Make it so</Button></>}>
      {fault && <Failure error={fault} />}
      <Notice>Everything becomes as it was then, as a new revision; what follows is what changes. <a href={href(['history'])}>The history</a> leads back from there as well.</Notice>
      {tried.data ? <Changes changes={tried.data.changes} /> : !fault && <Loading />}
    </Dialog>
  );
}
