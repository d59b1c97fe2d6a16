// Numbers and times for people.

export function count(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  const size = Math.abs(value);
  if (size >= 1e9) return `${trim(value / 1e9)} G`;
  if (size >= 1e6) return `${trim(value / 1e6)} M`;
  if (size >= 1e4) return `${trim(value / 1e3)} k`;
  return size >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString('en') : trim(value);
}

function trim(value: number): string {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2).replace(/0$/, '').replace(/\.0$/, '');
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${at === 0 ? value : trim(value)} ${units[at]}`;
}

export function ms(value: number | null | undefined): string {
  if (value === null || value === undefined) return '–';
  if (value >= 1000) return `${trim(value / 1000)} s`;
  return value < 1 ? `${Math.round(value * 1000)} µs` : `${trim(value)} ms`;
}

export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined || Number.isNaN(share)) return '–';
  const value = share * 100;
  return value === 0 ? '0 %' : value < 0.01 ? '< 0.01 %' : `${trim(value)} %`;
}

export function ago(seconds: number | null | undefined): string {
  if (!seconds) return '–';
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  if (passed < 5) return 'now';
  return `${span(passed)} ago`;
}

export function span(seconds: number): string {
  const [value, unit] = seconds < 60 ? [seconds, 's'] : seconds < 3600 ? [seconds / 60, 'min'] : seconds < 86400 ? [seconds / 3600, 'h'] : [seconds / 86400, 'd'];
  return `${Math.floor(value as number)} ${unit}`;
}

export const time = (seconds: number) => new Date(seconds * 1000).toLocaleString();
export const clock = (milliseconds: number) => {
  const date = new Date(milliseconds);
  return date.toLocaleTimeString([], { hour12: false }) + '.' + String(date.getMilliseconds()).padStart(3, '0');
};
