//! Conditions that are functions: APISIX's `filter_func` of a route.

use std::fmt;
use std::sync::Arc;

use mlua::{LuaString, Table, Value};
use weir_expr::{Condition, Source};
use weir_plugin::Slot;

use crate::api;
use crate::call::Call;
use crate::engine::{Engine, text};
use crate::hook::Hook;

/// A text `function(vars) … end`, which says of a request if it meets a condition.
#[derive(Clone)]
pub struct Function(Arc<Compiled>);

struct Compiled {
    name: Box<str>,
    text: Box<str>,
    functions: Slot<(u64, mlua::Function)>,
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Function").field(&self.0.text).finish()
    }
}

impl Function {
    /// Compiles a text. `name` is for messages.
    ///
    /// # Errors
    /// The text does not compile, or is no function; with the line.
    pub fn check(name: &str, text: &str) -> Result<Self, String> {
        let function = Self(Arc::new(Compiled { name: name.into(), text: text.into(), functions: Slot::default() }));
        let loaded = Engine::here().and_then(|engine| function.load(&engine));
        loaded.map(|_| function).map_err(|error| self::text(&error))
    }

    fn load(&self, engine: &Engine) -> mlua::Result<mlua::Function> {
        let before = Call::new(Hook::Load).enter();
        let loaded = engine.limit_memory().and_then(|_bound| {
            let globals: Table = engine.entry("globals")?.call(())?;
            let chunk = engine.load(&self.0.name, &format!("return {}", self.0.text), globals)?;
            let chunk: mlua::Function = engine.entry("guarded")?.call(chunk)?;
            match chunk.call::<Value>(())? {
                Value::Function(function) => engine.entry("guarded")?.call(function),
                other => {
                    Err(mlua::Error::runtime(format!("expected function(vars) … end, found a {}", other.type_name())))
                }
            }
        });
        before.enter();
        loaded
    }

    fn call(&self, source: &dyn Source) -> mlua::Result<bool> {
        let engine = Engine::here()?;
        let known = self.0.functions.get().filter(|known| known.0 == engine.number);
        let known = match known {
            Some(known) => known,
            None => self.0.functions.put((engine.number, self.load(&engine)?)),
        };
        let before = Call::new(Hook::Load).enter();
        let holds = engine.lua.scope(|scope| {
            let read = scope.create_function(move |lua, name: LuaString| api::variable(lua, source, &name))?;
            let vars: Table = engine.entry("vars")?.call(read)?;
            let _bound = engine.limit_memory()?;
            known.1.call::<bool>(vars)
        });
        before.enter();
        if let Err(error) = &holds {
            engine.failed(error);
        }
        holds
    }
}

impl Condition for Function {
    fn holds(&self, source: &dyn Source) -> Option<bool> {
        let holds = self.call(source);
        if let Err(error) = &holds {
            tracing::error!("{}: {}", self.0.name, text(error));
        }
        holds.ok()
    }
}
