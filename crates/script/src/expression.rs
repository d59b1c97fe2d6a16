//! Expressions in texts: the templates of Kong's request-transformer.

use std::fmt;

use mlua::{LuaString, Table, Value};
use weir_plugin::{RequestCx, Slot};

use crate::call::Call;
use crate::context::CONTEXT;
use crate::engine::{Engine, text};
use crate::hook::Hook;

/// A table that an expression looks into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// `headers`
    Headers,
    /// `query_params`
    QueryParams,
    /// `uri_captures`
    UriCaptures,
}

/// The failure of an expression, whose reason is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvalError;

/// An expression in Lua over tables of a request.
pub struct Expression {
    text: Box<str>,
    functions: Slot<(u64, mlua::Function)>,
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.text).finish()
    }
}

impl Expression {
    /// Compiles an expression.
    ///
    /// # Errors
    /// The text is no expression.
    pub fn check(expression: &str) -> Result<Self, String> {
        let made = Self { text: expression.into(), functions: Slot::default() };
        let loaded = Engine::here().and_then(|engine| made.load(&engine));
        loaded.map(|_| made).map_err(|error| text(&error))
    }

    fn load(&self, engine: &Engine) -> mlua::Result<mlua::Function> {
        let _bound = engine.limit_memory()?;
        let globals: Table = engine.entry("globals")?.call(())?;
        let source = format!("local headers, query_params, uri_captures, shared = ...\nreturn ({}\n)", self.text);
        engine.load("template", &source, globals)
    }

    /// The value for a request, as text; `None` where it is nil. `look` reads the tables.
    ///
    /// # Errors
    /// The expression has failed, which is in the log.
    pub fn eval(
        &self,
        cx: &RequestCx<'_>,
        look: impl Fn(Lookup, &[u8]) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, EvalError> {
        let before = Call::new(Hook::Load).enter();
        let value = self.call(cx, look);
        before.enter();
        value.map_err(|error| {
            tracing::error!("template $({}): {}", self.text, text(&error));
            EvalError
        })
    }

    fn call(
        &self,
        cx: &RequestCx<'_>,
        look: impl Fn(Lookup, &[u8]) -> Option<Vec<u8>>,
    ) -> mlua::Result<Option<Vec<u8>>> {
        let engine = Engine::here()?;
        let _bound = engine.limit_memory()?;
        let known = self.functions.get().filter(|known| known.0 == engine.number);
        let known = match known {
            Some(known) => known,
            None => self.functions.put((engine.number, self.load(&engine)?)),
        };
        let context = CONTEXT.get(cx).filter(|context| context.engine == engine.number);
        let shared = context.map(|context| context.table.raw_get::<Value>("_shared")).transpose()?;
        let value = engine.lua.scope(|scope| {
            let read = scope.create_function(|lua, (kind, name): (u8, LuaString)| {
                let kind = match kind {
                    0 => Lookup::Headers,
                    1 => Lookup::QueryParams,
                    _ => Lookup::UriCaptures,
                };
                look(kind, &name.as_bytes()).map(|value| lua.create_string(value)).transpose()
            })?;
            engine.entry("template")?.call::<Option<LuaString>>((known.1.clone(), read, shared))
        });
        if let Err(error) = &value {
            engine.failed(error);
        }
        Ok(value?.map(|value| value.as_bytes().to_vec()))
    }
}
