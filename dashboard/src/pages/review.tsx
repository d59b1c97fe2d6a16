// The differences before a change is made, for APIs without conditions: what is stored is read again first.
import { useState } from 'preact/hooks';
import { ApiError, type Json } from '../api';
import { asApiError, Button, Dialog, Diff, Failure } from '../controls';
import { equal } from '../diff';

export function Review({ title, before, now, read, write, onClose, onSaved, onTheirs }: {
  title: string;
  /** What the change began with; undefined for something new. */
  before: Json;
  now: Json;
  /** What is stored by now. */
  read: () => Promise<Json>;
  write: () => Promise<Json>;
  onClose: () => void;
  onSaved: (answer: Json) => void;
  onTheirs: () => void;
}) {
  const [error, setError] = useState<ApiError>();
  const [theirs, setTheirs] = useState<Json>(null);
  const [busy, setBusy] = useState(false);
  const save = async (over = false) => {
    setBusy(true);
    setError(undefined);
    try {
      if (before !== undefined && !over) {
        const current = await read();
        if (!equal(current, before)) return setTheirs(current);
      }
      onSaved(await write());
    } catch (fault) {
      setError(asApiError(fault));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog wide title={theirs ? 'Somebody else changed it meanwhile' : title} onClose={onClose}
      actions={theirs ? <><Button onClick={onTheirs}>Discard mine, show theirs</Button><Button tone="danger" busy={busy} onClick={() => void save(true)}>Replace theirs by mine</Button></>
        : <><Button onClick={onClose}>Back</Button><Button tone="primary" icon="check" busy={busy} onClick={() => void save()}>{before === undefined ? 'Create' : 'Save'}</Button></>}>
      {error && <Failure error={error} />}
      {theirs ? <div class="grid two"><div><h3>Their change</h3><Diff old={before} now={theirs} /></div><div><h3>Your change</h3><Diff old={before} now={now} /></div></div> : <Diff old={before} now={now} />}
    </Dialog>
  );
}
