//! Plugins in Lua, in the form of APISIX's: a file that returns a table.

use mlua::{Table, Value};
use weir_plugin::Phases;

use crate::call::Call;
use crate::engine::{Engine, text};
use crate::hook::{HOOKS, Hook};

/// Things that a plugin in Lua says of itself.
#[derive(Debug)]
pub struct Module {
    /// Its place among other plugins.
    pub priority: i32,
    /// The phases in which it has functions.
    pub phases: Phases,
    /// The JSON Schema of its configuration.
    pub schema: serde_json::Value,
}

/// Fields of modules that mean something APISIX does and this gateway does not.
const UNSUPPORTED: [(&str, &str); 5] = [
    ("api", "APIs of its own"),
    ("control_api", "a control API of its own"),
    ("consumer_schema", "credentials of consumers"),
    ("delayed_body_filter", "a function delayed_body_filter"),
    ("preread", "a function for streams"),
];

impl Module {
    /// Reads the text of a module. `name` is for messages.
    ///
    /// # Errors
    /// The text does not compile, fails when it is run, or is no plugin.
    pub fn read(name: &str, source: &str) -> Result<Self, String> {
        let before = Call::new(Hook::Load).enter();
        let read = Engine::here().and_then(|engine| Self::of(&engine, name, source));
        before.enter();
        read.map_err(|error| text(&error))
    }

    fn of(engine: &Engine, name: &str, source: &str) -> mlua::Result<Self> {
        let _bound = engine.limit_memory()?;
        let globals: Table = engine.entry("globals")?.call(())?;
        let chunk: mlua::Function = engine.entry("guarded")?.call(engine.load(name, source, globals)?)?;
        let table = match chunk.call::<Value>(())? {
            Value::Table(table) => table,
            other => {
                let text = format!("expected a file that returns a table, it returns a {}", other.type_name());
                return Err(mlua::Error::runtime(text));
            }
        };
        for (field, what) in UNSUPPORTED {
            if !table.get::<Value>(field)?.is_nil() {
                return Err(mlua::Error::runtime(format!("{field}: a plugin in Lua cannot have {what}")));
            }
        }
        if table.get::<Option<String>>("type")?.as_deref() == Some("auth") {
            return Err(mlua::Error::runtime("type: a plugin in Lua cannot be one that authenticates consumers"));
        }
        let schema: Value = table.get("schema")?;
        let schema = match schema {
            Value::Nil => serde_json::json!({ "type": "object" }),
            schema => {
                let text: String = engine.entry("encode")?.call(schema)?;
                serde_json::from_str(&text).map_err(mlua::Error::external)?
            }
        };
        let mut phases = Phases::NONE;
        for hook in HOOKS {
            if table.get::<Value>(hook.name())?.is_function() {
                phases = phases.and(hook.phases());
            }
        }
        Ok(Self { priority: table.get::<Option<i32>>("priority")?.unwrap_or(0), phases, schema })
    }
}
