import { defineConfig } from 'vite';

// Names without digests, so that a build changes the same four files; the gateway sends entity tags.
export default defineConfig({
  base: './',
  publicDir: 'public',
  build: {
    outDir: 'dist',
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: false,
    cssCodeSplit: false,
    target: 'es2022',
    rollupOptions: {
      output: {
        entryFileNames: 'dashboard/app.js',
        assetFileNames: 'dashboard/app[extname]',
        codeSplitting: false,
      },
    },
  },
  server: { proxy: { '/weir': 'http://127.0.0.1:9180', '/apisix': 'http://127.0.0.1:9180' } },
});
