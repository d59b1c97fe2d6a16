// Icons as strokes on a field of 24.
const PATHS: Record<string, string> = {
  overview: 'M3 13h4l3-8 4 14 3-6h4',
  routes: 'M5 5h6a3 3 0 0 1 0 6h-2a3 3 0 0 0 0 6h10M16 14l3 3-3 3',
  services: 'M4 7l8-4 8 4-8 4zM4 12l8 4 8-4M4 17l8 4 8-4',
  upstreams: 'M4 4h16v6H4zM4 14h16v6H4zM8 7h.01M8 17h.01',
  stream_routes: 'M4 12h16M4 6c4 0 4 3 8 3s4-3 8-3M4 18c4 0 4-3 8-3s4 3 8 3',
  consumers: 'M16 20v-2a4 4 0 0 0-4-4H7a4 4 0 0 0-4 4v2M9.5 10a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7M21 20v-2a4 4 0 0 0-3-3.9M16 3.2a3.5 3.5 0 0 1 0 6.6',
  credentials: 'M14 10a4 4 0 1 0-3 3.9l1.5 1.6H15v2.5h2.5V20H21v-3l-7.2-5.5M9 10h.01',
  consumer_groups: 'M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6M16 11a3 3 0 1 0 0-6M2 20v-1a5 5 0 0 1 10 0v1M14 14.5a5 5 0 0 1 8 4V20',
  plans: 'M12 3v18M7 7h7.5a3 3 0 0 1 0 6h-5a3 3 0 0 0 0 6H18',
  ssls: 'M6 11h12v9H6zM9 11V7a3 3 0 0 1 6 0v4',
  secrets: 'M12 3l7 3v6c0 4-3 7-7 9-4-2-7-5-7-9V6zM9 12l2 2 4-4',
  global_rules: 'M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18M3 12h18M12 3c3 3 3 15 0 18M12 3c-3 3-3 15 0 18',
  plugin_configs: 'M10 4v3H6v4H4M14 4v3h4v4h2M6 11v5h5v4M18 11v5h-5v4',
  plugin_metadata: 'M4 6h10M18 6h2M4 12h2M10 12h10M4 18h8M16 18h4M14 4v4M8 10v4M12 16v4',
  protos: 'M8 4l-5 8 5 8M16 4l5 8-5 8M13 4l-2 16',
  explain: 'M12 18h.01M9.1 9a3 3 0 1 1 4.4 3c-1 .6-1.5 1.2-1.5 2.5M12 22a10 10 0 1 0 0-20 10 10 0 0 0 0 20',
  tail: 'M4 5h16M4 10h10M4 15h13M4 20h7',
  usage: 'M4 20V10M10 20V4M16 20v-7M22 20H2',
  keys: 'M14 10a4 4 0 1 0-3 3.9l1.5 1.6H15v2.5h2.5V20H21v-3l-7.2-5.5M9 10h.01',
  history: 'M3 12a9 9 0 1 0 3-6.7L3 8M3 3v5h5M12 7v5l3 2',
  problems: 'M12 3L2 20h20zM12 9v5M12 17h.01',
  plugins: 'M9 3v5M15 3v5M6 8h12v4a6 6 0 0 1-12 0zM12 18v3',
  search: 'M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14M20 20l-4-4',
  plus: 'M12 5v14M5 12h14',
  close: 'M6 6l12 12M18 6L6 18',
  menu: 'M4 6h16M4 12h16M4 18h16',
  sun: 'M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8M12 2v2M12 20v2M4.9 4.9l1.4 1.4M17.7 17.7l1.4 1.4M2 12h2M20 12h2M4.9 19.1l1.4-1.4M17.7 6.3l1.4-1.4',
  moon: 'M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5',
  out: 'M10 4H5v16h5M15 8l4 4-4 4M19 12H9',
  trash: 'M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v6M14 11v6',
  copy: 'M9 9h11v11H9zM5 15H4V4h11v1',
  down: 'M6 9l6 6 6-6',
  right: 'M9 6l6 6-6 6',
  left: 'M15 6l-6 6 6 6',
  check: 'M5 12l5 5 9-10',
  pause: 'M8 5v14M16 5v14',
  play: 'M7 4l13 8-13 8z',
  undo: 'M9 14L4 9l5-5M4 9h10a6 6 0 0 1 0 12h-3',
  lock: 'M6 11h12v9H6zM9 11V7a3 3 0 0 1 6 0v4',
  export: 'M12 3v12M7 10l5 5 5-5M4 20h16',
};

export function Icon({ name, size = 18 }: { name: string; size?: number }) {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" focusable="false">
      <path d={PATHS[name] ?? PATHS.protos} />
    </svg>
  );
}
