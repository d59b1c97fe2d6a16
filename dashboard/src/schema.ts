// JSON Schemas as forms need them.
import { get, type Json } from './api';

export type Schema = Json;

const known = new Map<string, Promise<Json>>();

function once(path: string): Promise<Json> {
  if (!known.has(path)) {
    const asked = get(path);
    asked.catch(() => known.delete(path));
    known.set(path, asked);
  }
  return known.get(path)!;
}

export interface PluginInfo {
  name: string;
  priority: number;
  auth: boolean;
  requests: boolean;
  streams: boolean;
  supported: boolean;
  metadata: boolean;
  doc: string;
  example: string;
}

export const resourceSchema = (name: string) => once(`/apisix/admin/schema/${name}`);
export const pluginSchema = (name: string, type?: 'consumer' | 'metadata') =>
  once(`/apisix/admin/schema/plugins/${name}${type ? `?schema_type=${type}` : ''}`);
export const plugins = (): Promise<PluginInfo[]> => once('/weir/v1/plugins').then((found) => found.plugins);

/** A schema with its reference followed, and the parts of `allOf` and of a nullable type put together. */
export function plain(schema: Schema, root: Schema): Schema {
  let found = schema;
  for (let depth = 0; depth < 8; depth++) {
    if (found === true || found === undefined) return {};
    if (found.$ref) {
      const at = String(found.$ref).replace(/^#\//, '').split('/').reduce((node: Json, step) => node?.[step.replace(/~1/g, '/').replace(/~0/g, '~')], root);
      const { $ref: _, ...rest } = found;
      found = { ...(at ?? {}), ...rest };
    } else if (Array.isArray(found.allOf) && found.allOf.length === 1) {
      const { allOf, ...rest } = found;
      found = { ...allOf[0], ...rest };
    } else if (Array.isArray(found.anyOf) && found.anyOf.some((one: Schema) => one.type === 'null')) {
      const others = found.anyOf.filter((one: Schema) => one.type !== 'null');
      if (others.length !== 1) return found;
      const { anyOf: _, ...rest } = found;
      found = { ...others[0], ...rest };
    } else if (Array.isArray(found.oneOf) && found.oneOf.every((one: Schema) => one.const !== undefined)) {
      const { oneOf, ...rest } = found;
      found = { ...rest, enum: oneOf.map((one: Schema) => one.const) };
    } else break;
  }
  if (Array.isArray(found.type)) {
    const types = found.type.filter((type: string) => type !== 'null');
    if (types.length === 1) found = { ...found, type: types[0] };
  }
  return found;
}

export type Shape = 'object' | 'scalar' | 'text' | 'number' | 'boolean' | 'choice' | 'texts' | 'choices' | 'map' | 'list' | 'json';

/** The control that a schema gets. */
export function shape(schema: Schema, root: Schema): Shape {
  if (Array.isArray(schema.enum)) return 'choice';
  const scalars = ['string', 'integer', 'number'];
  if (Array.isArray(schema.type)) return schema.type.every((type: string) => scalars.includes(type)) ? 'scalar' : 'json';
  switch (schema.type) {
    case 'boolean': return 'boolean';
    case 'integer':
    case 'number': return 'number';
    case 'string': return 'text';
    case 'array': {
      const items = plain(schema.items ?? {}, root);
      if (Array.isArray(items.enum)) return 'choices';
      if (items.type === 'string') return 'texts';
      return items.type === 'object' && items.properties ? 'list' : 'json';
    }
    case 'object':
      if (schema.properties && Object.keys(schema.properties).length) return 'object';
      return schema.additionalProperties && ['string', 'integer', 'number'].includes(plain(schema.additionalProperties, root).type) ? 'map' : 'json';
    default: {
      const several: Schema[] = schema.anyOf ?? schema.oneOf ?? [];
      const types = several.map((one) => plain(one, root).type);
      if (types.length && types.every((type) => scalars.includes(type))) return 'scalar';
      return schema.properties ? 'object' : 'json';
    }
  }
}

/** What is wrong with a value at first sight; the gateway checks everything else. */
export function fault(schema: Schema, value: Json): string | undefined {
  if (value === undefined || value === null || value === '') return undefined;
  if (typeof value === 'number') {
    if (schema.minimum !== undefined && value < schema.minimum) return `at least ${schema.minimum}`;
    if (schema.maximum !== undefined && value > schema.maximum) return `at most ${schema.maximum}`;
    if (schema.exclusiveMinimum !== undefined && value <= schema.exclusiveMinimum) return `more than ${schema.exclusiveMinimum}`;
    if (schema.type === 'integer' && !Number.isInteger(value)) return 'a whole number';
  }
  if (typeof value === 'string') {
    if (schema.minLength !== undefined && value.length < schema.minLength) return `at least ${schema.minLength} characters`;
    if (schema.maxLength !== undefined && value.length > schema.maxLength) return `at most ${schema.maxLength} characters`;
    if (schema.pattern) {
      try {
        if (!new RegExp(schema.pattern, 'u').test(value)) return `has to fit ${schema.pattern}`;
      } catch { /* a pattern that browsers do not know */ }
    }
  }
  return undefined;
}

export const words = (name: string) => name.replace(/_/g, ' ');
