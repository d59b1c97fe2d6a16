//! The interpreter of a worker, with what scripts may use and nothing else.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use mlua::chunk::ChunkMode;
use mlua::{Error, FromLuaMulti, Function, HookTriggers, IntoLuaMulti, Lua, LuaOptions, Result, StdLib, Table, Thread};

use crate::context::Number;
use crate::options::options;
use crate::{api, call};

/// Most coroutines that are kept for further calls.
const MOST_THREADS: usize = 64;

/// The libraries of scripts, in the order in which they are set up.
const PRELUDE: [(&str, &str); 9] = [
    ("base", include_str!("../lua/base.lua")),
    ("ngx", include_str!("../lua/ngx.lua")),
    ("core", include_str!("../lua/core.lua")),
    ("core_request", include_str!("../lua/core_request.lua")),
    ("kong", include_str!("../lua/kong.lua")),
    ("kong_service", include_str!("../lua/kong_service.lua")),
    ("http", include_str!("../lua/http.lua")),
    ("jwt", include_str!("../lua/jwt.lua")),
    ("forms", include_str!("../lua/forms.lua")),
];

/// An interpreter.
pub(crate) struct Engine {
    pub(crate) lua: Lua,
    /// Its number among the interpreters of this thread: values of another one are of no use here.
    pub(crate) number: u64,
    /// Functions of the prelude for the gateway.
    entry: Table,
    /// The one that makes a context.
    new_context: Function,
    /// Coroutines that have ended.
    threads: RefCell<Vec<Thread>>,
    /// True when the interpreter is to be replaced by a new one.
    is_worn: Cell<bool>,
}

thread_local! {
    static ENGINE: RefCell<Option<Rc<Engine>>> = const { RefCell::new(None) };
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

impl Engine {
    /// The interpreter of this thread, made when there is none.
    pub(crate) fn here() -> Result<Rc<Self>> {
        let known = ENGINE.with_borrow(|engine| engine.as_ref().filter(|engine| !engine.is_worn.get()).cloned());
        if let Some(engine) = known {
            return Ok(engine);
        }
        let engine = Rc::new(Self::start()?);
        ENGINE.set(Some(Rc::clone(&engine)));
        Ok(engine)
    }

    fn start() -> Result<Self> {
        let mut libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::BIT | StdLib::OS | StdLib::JIT;
        let allowed = options().allowed;
        if allowed.files || allowed.processes {
            libraries |= StdLib::IO;
        }
        // With `catch_rust_panics` off, mlua puts functions of its own in the place of pcall, across which no coroutine
        // could yield.
        let lua = Lua::new_with(libraries, LuaOptions::new().catch_rust_panics(true))?;
        lua.load("jit.off() jit.flush() jit = nil").exec()?;
        let number = NUMBER.get() + 1;
        NUMBER.set(number);
        lua.set_app_data(Number(number));
        let raw = api::functions(&lua)?;
        let entry = lua.create_table()?;
        for (name, text) in PRELUDE {
            let chunk = lua.load(text).set_name(format!("=weir/{name}")).set_mode(ChunkMode::Text);
            chunk.call::<()>((raw.clone(), entry.clone()))?;
        }
        lua.set_global_hook(HookTriggers::new().every_nth_instruction(call::STEP), |_, _| call::count())?;
        let new_context = entry.raw_get("context")?;
        let engine = Self { lua, number, entry, new_context, threads: RefCell::default(), is_worn: Cell::new(false) };
        engine.lua.gc_collect()?;
        Ok(engine)
    }

    /// A function of the prelude for the gateway.
    pub(crate) fn entry(&self, name: &str) -> Result<Function> {
        self.entry.raw_get(name)
    }

    /// Compiles a text, with globals of its own over the common ones.
    pub(crate) fn load(&self, name: &str, text: &str, globals: Table) -> Result<Function> {
        // A text that begins with the mark of compiled code is refused by the mode: such code is not checked.
        let chunk = self.lua.load(text).set_name(format!("={name}")).set_mode(ChunkMode::Text);
        chunk.set_environment(globals).into_function()
    }

    /// Sets the bound of memory for a call that begins or goes on, until the value is dropped. While there is a bound,
    /// each step of mlua is guarded against it, which costs more than the step.
    pub(crate) fn limit_memory(&self) -> Result<Bound<'_>> {
        let options = options();
        let bound = self.lua.used_memory().saturating_add(options.memory).min(options.state_memory);
        Bound::set(&self.lua, bound)
    }

    /// A new table that scripts share on an exchange.
    pub(crate) fn new_context(&self) -> Result<Table> {
        self.new_context.call(())
    }

    /// A coroutine for this function.
    pub(crate) fn thread(&self, function: &Function) -> Result<Thread> {
        match self.threads.borrow_mut().pop() {
            Some(thread) => thread.reset(function.clone()).map(|()| thread),
            None => self.lua.create_thread(function.clone()),
        }
    }

    /// Keeps a coroutine that has ended.
    pub(crate) fn keep(&self, thread: Thread) {
        let mut threads = self.threads.borrow_mut();
        if threads.len() < MOST_THREADS && thread.is_finished() {
            threads.push(thread);
        }
    }

    /// Takes note of the error of a call. After one for want of memory all garbage is collected; an interpreter that
    /// still has more than half of its memory gives way to a new one.
    pub(crate) fn failed(&self, error: &Error) {
        let lacks_memory = matches!(root(error), Error::MemoryError(_)) || text(error).contains("not enough memory");
        if !lacks_memory {
            return;
        }
        // Collecting needs no room.
        let _ = self.lua.set_memory_limit(0);
        let collected = self.lua.gc_collect();
        if collected.is_err() || self.lua.used_memory() > options().state_memory / 2 {
            self.is_worn.set(true);
        }
    }
}

/// A bound of memory, which gives way to the one before it when it is dropped.
pub(crate) struct Bound<'a> {
    lua: &'a Lua,
    before: usize,
}

impl<'a> Bound<'a> {
    fn set(lua: &'a Lua, bound: usize) -> Result<Self> {
        Ok(Self { lua, before: lua.set_memory_limit(bound)? })
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        // One that could be set can be set again.
        let _ = self.lua.set_memory_limit(self.before);
    }
}

/// A function of the gateway's own whose results are bounded otherwise, by the size of a head: the interpreter is bounded
/// again behind it.
pub(crate) fn unbounded<A: FromLuaMulti, R: IntoLuaMulti>(
    lua: &Lua,
    work: impl Fn(&Lua, A) -> Result<R> + 'static,
) -> Result<Function> {
    lua.create_function(move |lua, arguments: A| {
        let _bound = Bound::set(lua, 0)?;
        work(lua, arguments)
    })
}

/// The error at the bottom of one.
pub(crate) fn root(error: &Error) -> &Error {
    match error {
        Error::CallbackError { cause, .. } => root(cause),
        Error::WithContext { cause, .. } => root(cause),
        error => error,
    }
}

/// The text of an error, on one line, without the stack.
pub(crate) fn text(error: &Error) -> String {
    let text = match root(error) {
        Error::RuntimeError(text) | Error::MemoryError(text) | Error::SyntaxError { message: text, .. } => text.clone(),
        error => error.to_string(),
    };
    text.lines().next().unwrap_or_default().to_owned()
}
