// The parts that pages are made of.
import type { ComponentChildren } from 'preact';
import { useEffect, useId, useRef, useState } from 'preact/hooks';
import { ApiError, Store, type Finding } from './api';
import { diff } from './diff';
import { Icon } from './icons';

export type Children = ComponentChildren;

export function useStore<T>(store: Store<T>): T {
  const [value, set] = useState(store.value);
  useEffect(() => {
    set(store.value);
    return store.follow(set);
  }, [store]);
  return value;
}

/** Reads something when `inputs` change; `reload` reads it again. */
export function useLoad<T>(load: () => Promise<T>, inputs: unknown[]) {
  const [state, set] = useState<{ data?: T; error?: ApiError; loading: boolean }>({ loading: true });
  const [turn, setTurn] = useState(0);
  const latest = useRef(0);
  useEffect(() => {
    const mine = ++latest.current;
    set((before) => ({ ...before, loading: true }));
    load().then(
      (data) => mine === latest.current && set({ data, loading: false }),
      (error) => mine === latest.current && set((before) => ({ data: before.data, error: asApiError(error), loading: false })),
    );
  }, [...inputs, turn]);
  return { ...state, reload: () => setTurn((before) => before + 1) };
}

export const asApiError = (error: unknown) => (error instanceof ApiError ? error : new ApiError(0, String(error), null));

export function Page({ title, hint, actions, children }: { title: Children; hint?: Children; actions?: Children; children: Children }) {
  return (
    <>
      <header class="page-head">
        <div>
          <h1>{title}</h1>
          {hint && <p class="hint">{hint}</p>}
        </div>
        {actions && <div class="actions">{actions}</div>}
      </header>
      {children}
    </>
  );
}

export function Card({ title, actions, children, class: name = '' }: { title?: Children; actions?: Children; children: Children; class?: string }) {
  return (
    <section class={`card ${name}`}>
      {title && (
        <header class="card-head">
          <h2>{title}</h2>
          {actions}
        </header>
      )}
      {children}
    </section>
  );
}

export function Badge({ tone = 'plain', children }: { tone?: 'plain' | 'good' | 'warn' | 'bad' | 'accent'; children: Children }) {
  return <span class={`badge ${tone}`}>{children}</span>;
}

export function Status({ code }: { code: number | string }) {
  const first = String(code)[0];
  const tone = first === '2' ? 'good' : first === '4' ? 'warn' : first === '5' ? 'bad' : 'plain';
  return <Badge tone={tone}>{code}</Badge>;
}

export function Empty({ icon = 'search', title, children }: { icon?: string; title: string; children?: Children }) {
  return (
    <div class="empty">
      <Icon name={icon} size={28} />
      <p class="empty-title">{title}</p>
      {children && <div class="hint">{children}</div>}
    </div>
  );
}

export function Notice({ tone = 'info', title, children }: { tone?: 'info' | 'warn' | 'bad' | 'good'; title?: Children; children?: Children }) {
  return (
    <div class={`notice ${tone}`} role={tone === 'bad' ? 'alert' : 'status'}>
      <Icon name={tone === 'good' ? 'check' : tone === 'info' ? 'explain' : 'problems'} />
      <div>
        {title && <strong>{title}</strong>}
        {children && <div>{children}</div>}
      </div>
    </div>
  );
}

export function Failure({ error }: { error: ApiError }) {
  return (
    <Notice tone="bad" title={error.message}>
      <Findings findings={error.findings} />
    </Notice>
  );
}

export function Findings({ findings }: { findings: Finding[] }) {
  if (!findings.length) return null;
  return (
    <ul class="findings">
      {findings.map((found, at) => (
        <li key={at}>
          <Badge tone={found.severity === 'error' ? 'bad' : 'warn'}>{found.severity}</Badge> {found.path && <code>{found.path}</code>} {found.message}
          {found.hint && <span class="hint"> {found.hint}</span>}
        </li>
      ))}
    </ul>
  );
}

export function Loading() {
  return <div class="loading" role="status"><span class="sr">Loading</span></div>;
}

export function Button({ icon, tone = '', title, busy, disabled, onClick, children, type = 'button' }: {
  icon?: string; tone?: '' | 'primary' | 'danger' | 'quiet'; title?: string; busy?: boolean; disabled?: boolean;
  onClick?: () => void; children?: Children; type?: 'button' | 'submit';
}) {
  return (
    <button type={type} class={`button ${tone} ${children ? '' : 'square'}`} title={title} aria-label={children ? undefined : title} disabled={disabled || busy} aria-busy={busy} onClick={onClick}>
      {icon && <Icon name={icon} size={16} />}
      {children}
    </button>
  );
}

export function Field({ label, hint, error, children }: { label: Children; hint?: Children; error?: string; children: (id: string, describedBy: string) => Children }) {
  const id = useId();
  return (
    <div class={`field ${error ? 'wrong' : ''}`}>
      <label for={id}>{label}</label>
      {children(id, `${id}-hint`)}
      {(hint || error) && <div class="field-hint" id={`${id}-hint`}>{error ? <span class="error-text">{error}</span> : hint}</div>}
    </div>
  );
}

export function Dialog({ title, onClose, children, actions, wide }: { title: string; onClose: () => void; children: Children; actions?: Children; wide?: boolean }) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    ref.current?.showModal();
    return () => before?.focus?.();
  }, []);
  return (
    <dialog ref={ref} class={wide ? 'wide' : ''} aria-labelledby={id} onCancel={(event) => { event.preventDefault(); onClose(); }}
      onMouseDown={(event) => { if (event.target === ref.current) onClose(); }}>
      <div class="dialog-body">
        <header class="card-head">
          <h2 id={id}>{title}</h2>
          <Button icon="close" tone="quiet" title="Close" onClick={onClose} />
        </header>
        <div class="dialog-content">{children}</div>
        {actions && <footer class="dialog-actions">{actions}</footer>}
      </div>
    </dialog>
  );
}

export function Diff({ old, now }: { old: unknown; now: unknown }) {
  const found = diff(old, now);
  if (!found.length) return <p class="hint">No difference.</p>;
  const sign = { same: ' ', gone: '−', new: '+', skip: '⋯' };
  const word = { same: '', gone: 'removed: ', new: 'added: ', skip: '' };
  return (
    <div class="diff" tabIndex={0} role="region" aria-label="Differences">
      {found.map((line, at) => (
        <div key={at} class={`line ${line.sort}`}>
          <span class="sign" aria-hidden="true">{sign[line.sort]}</span>
          <span class="sr">{word[line.sort]}</span>
          <span>{line.text}</span>
        </div>
      ))}
    </div>
  );
}

export function Pager({ page, size, total, onPage }: { page: number; size: number; total: number; onPage: (page: number) => void }) {
  const last = Math.max(1, Math.ceil(total / size));
  if (last === 1) return null;
  const from = (page - 1) * size + 1;
  return (
    <nav class="pager" aria-label="Pages">
      <span class="hint">{from.toLocaleString('en')}–{Math.min(total, from + size - 1).toLocaleString('en')} of {total.toLocaleString('en')}</span>
      <Button icon="left" title="Previous page" disabled={page <= 1} onClick={() => onPage(page - 1)} />
      <span>{page} / {last.toLocaleString('en')}</span>
      <Button icon="right" title="Next page" disabled={page >= last} onClick={() => onPage(page + 1)} />
    </nav>
  );
}

export function Chips({ items, most = 4 }: { items: string | string[]; most?: number }) {
  if (typeof items === 'string') return <>{items}</>;
  if (!items.length) return <span class="faint">–</span>;
  return (
    <span class="chips">
      {items.slice(0, most).map((item) => <span class="chip" key={item}>{item}</span>)}
      {items.length > most && <span class="hint">+{items.length - most}</span>}
    </span>
  );
}

export function Tabs<T extends string>({ tabs, current, onChoose }: { tabs: { id: T; label: Children }[]; current: T; onChoose: (id: T) => void }) {
  const move = (event: KeyboardEvent) => {
    const at = tabs.findIndex((tab) => tab.id === current);
    const step = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
    if (!step) return;
    const next = tabs[(at + step + tabs.length) % tabs.length]!;
    onChoose(next.id);
    ((event.currentTarget as HTMLElement).children[tabs.indexOf(next)] as HTMLElement).focus();
  };
  return (
    <div class="tabs" role="tablist" onKeyDown={move}>
      {tabs.map((tab) => (
        <button key={tab.id} type="button" role="tab" aria-selected={tab.id === current} tabIndex={tab.id === current ? 0 : -1} onClick={() => onChoose(tab.id)}>{tab.label}</button>
      ))}
    </div>
  );
}

export function Segments<T extends string>({ options, value, onChange, label }: { options: { id: T; label: string }[]; value: T; onChange: (id: T) => void; label: string }) {
  return (
    <div class="segments" role="group" aria-label={label}>
      {options.map((option) => (
        <button key={option.id} type="button" aria-pressed={option.id === value} onClick={() => onChange(option.id)}>{option.label}</button>
      ))}
    </div>
  );
}

// Messages that go by themselves.
const toasts = new Store<{ id: number; tone: 'good' | 'bad'; text: string }[]>([]);
let serial = 0;

export function toast(text: string, tone: 'good' | 'bad' = 'good') {
  const id = ++serial;
  toasts.value = [...toasts.value.slice(-1), { id, tone, text }];
  setTimeout(() => (toasts.value = toasts.value.filter((one) => one.id !== id)), tone === 'bad' ? 9000 : 5000);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {useStore(toasts).map((one) => <div key={one.id} class={`toast ${one.tone}`}><Icon name={one.tone === 'good' ? 'check' : 'problems'} />{one.text}</div>)}
    </div>
  );
}

export async function copy(text: string) {
  try {
    await navigator.clipboard.writeText(text);
    toast('Copied');
  } catch {
    toast('The browser does not let pages copy here', 'bad');
  }
}

/** Text of Markdown in simple parts: paragraphs, lists, code. */
export function Markdown({ text }: { text: string }) {
  const inline = (line: string) =>
    line.replace(/\[([^\]]+)\]\([^)]*\)/g, '$1').split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part, at) =>
      part.startsWith('`') ? <code key={at}>{part.slice(1, -1)}</code> : part.startsWith('**') ? <strong key={at}>{part.slice(2, -2)}</strong> : part);
  const block = (block: string, key: string) => {
    if (/^\s*[-*] /.test(block)) return <ul key={key}>{block.split(/\n(?=\s*[-*] )/).map((item, n) => <li key={n}>{inline(item.replace(/^\s*[-*] /, ''))}</li>)}</ul>;
    if (/^\|/.test(block)) {
      const rows = block.split('\n').filter((line) => !/^[|\s:-]+$/.test(line)).map((line) => line.replace(/^\||\|$/g, '').split('|').map((cell) => cell.trim()));
      return <table key={key} class="plain"><tbody>{rows.map((cells, n) => <tr key={n}>{cells.map((cell, m) => <td key={m}>{inline(cell)}</td>)}</tr>)}</tbody></table>;
    }
    return <p key={key}>{inline(block.replace(/^#+ /, ''))}</p>;
  };
  // Every second part stands between fences.
  return (
    <div class="markdown">
      {text.split('```').map((part, at) => at % 2
        ? <pre key={at}>{part.replace(/^\w*\n/, '').trimEnd()}</pre>
        : part.split(/\n{2,}/).filter((one) => one.trim()).map((one, n) => block(one.trim(), `${at}.${n}`)))}
    </div>
  );
}
