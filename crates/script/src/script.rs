//! A script of a plugin's configuration: checked on the control thread, compiled once in each worker, and called.

use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use mlua::{Function, IntoLuaMulti, MultiValue, Table, Thread, Value};
use weir_expr::Variable;
use weir_plugin::{
    BodyCx, BuildCx, Failure, Flow, HookCxMut, Invalid, Io, LocalFuture, PerRequest, Phases, RequestCx, ResponseCx,
    Slot, lend,
};

use crate::call::Call;
use crate::context::{CONTEXT, Context};
use crate::engine::{Engine, text};
use crate::hook::{HOOKS, Hook, Identify};
use crate::services::Services;
use crate::wait;

/// The failure of a request whose script has failed; what happened is in the log.
const FAILED: Failure = Failure::internal("script failed");

/// Shape of the texts of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Each text returns `function(conf, ctx)`, as in APISIX's `serverless-pre-function`.
    Functions,
    /// Each text is what runs, or returns a function that runs, as in Kong's `pre-function`.
    Texts,
    /// Each text receives status, body and fields of an answer, and returns all three, as in APISIX's
    /// `exit-transformer`.
    Answers,
    /// Each text returns `function(conf, ctx)` whose results count for nothing: APISIX's `_meta.pre_function`.
    Before,
    /// One text returns a table of functions that receive the context: APISIX's `script` of a route.
    Object,
    /// One text returns a table of functions that receive a configuration and the context: a plugin for APISIX.
    Module,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Self::Functions => "functions",
            Self::Texts => "texts",
            Self::Answers => "answers",
            Self::Before => "before",
            Self::Object => "object",
            Self::Module => "module",
        }
    }
}

/// A text that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptError {
    /// Position of the text in its hook's list.
    pub at: usize,
    /// The hook whose list has it.
    pub hook: Hook,
    /// Description, with the line.
    pub reason: String,
}

/// Texts of a hook.
type Texts = Box<[Box<str>]>;

/// A script.
pub struct Script {
    name: Box<str>,
    form: Form,
    /// The texts of each hook; of forms with one text, that text under [`Hook::Load`].
    texts: Box<[(Hook, Texts)]>,
    /// The configuration for the functions, as JSON.
    conf: Box<str>,
    hooks: Vec<Hook>,
    is_early: bool,
    identify: Option<Identify>,
    functions: Slot<Functions>,
    services: Arc<Services>,
    waiting: PerRequest<Waiting>,
}

/// The functions of a script in one interpreter, by [`HOOKS`].
struct Functions {
    engine: u64,
    by_hook: [Option<Function>; HOOKS.len()],
}

/// A call in a coroutine.
struct Running {
    hook: Hook,
    engine: Rc<Engine>,
    thread: Thread,
    call: Call,
}

/// A call that waits.
struct Waiting {
    running: Running,
    /// Things waited for.
    wish: Table,
}

/// The type of the answer that scripts make, where one has set it.
static CONTENT_TYPE: LazyLock<Variable> = LazyLock::new(|| Variable::SentHeader("content-type".into()));

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("name", &self.name).field("hooks", &self.hooks).finish_non_exhaustive()
    }
}

impl Script {
    /// Compiles texts and runs what they run when they are loaded. `name` is for messages; `conf` is the configuration
    /// for the functions, as JSON.
    ///
    /// # Errors
    /// A text that does not compile, fails when it is loaded, or is not of the form.
    pub fn check(name: &str, form: Form, texts: Vec<(Hook, Vec<String>)>, conf: String) -> Result<Self, ScriptError> {
        let texts = texts.into_iter().map(|(hook, texts)| (hook, texts.into_iter().map(Into::into).collect()));
        let mut script = Self {
            name: name.into(),
            form,
            texts: texts.collect(),
            conf: conf.into(),
            hooks: Vec::new(),
            is_early: false,
            identify: None,
            functions: Slot::default(),
            services: Arc::default(),
            waiting: PerRequest::new(),
        };
        let hook = script.texts.first().map_or(Hook::Load, |(hook, _)| *hook);
        let fault = |error: &mlua::Error| ScriptError { at: 0, hook, reason: text(error) };
        let engine = Engine::here().map_err(|error| fault(&error))?;
        let functions = script.load(&engine)?;
        script.hooks = HOOKS.iter().zip(&functions.by_hook).filter_map(|(hook, f)| f.as_ref().map(|_| *hook)).collect();
        Ok(script)
    }

    /// The same script, with services that its requests go to.
    #[must_use]
    pub fn with_services(mut self, services: Services) -> Self {
        self.services = Arc::new(services);
        self
    }

    /// Sets up the services that stand in the texts of the script and of its configuration.
    ///
    /// # Errors
    /// An upstream cannot be built.
    pub fn build(self, build: &BuildCx<'_>) -> Result<Self, Invalid> {
        let texts = self.texts.iter().flat_map(|(_, texts)| texts.iter().map(|text| &**text));
        let services = Services::build(texts.chain([&*self.conf]), build)?;
        Ok(self.with_services(services))
    }

    /// The same script, with `access` in the phase `rewrite`, behind its `rewrite`: for a plugin whose place is before
    /// the consumer is known.
    #[must_use]
    pub fn with_early_access(mut self) -> Self {
        self.is_early = true;
        self
    }

    /// The same script, to which consumers are known by an identity of their own, as in Kong.
    #[must_use]
    pub fn with_identities(mut self, identify: Identify) -> Self {
        self.identify = Some(identify);
        self
    }

    /// A call of this script.
    fn begin(&self, hook: Hook) -> Call {
        Call { identify: self.identify, ..Call::new(hook) }
    }

    /// The phases that it needs.
    #[must_use]
    pub fn needed_phases(&self) -> Phases {
        let early = |hook: &Hook| if self.is_early && *hook == Hook::Access { Hook::Rewrite } else { *hook };
        self.hooks.iter().fold(Phases::NONE, |phases, hook| phases.and(early(hook).phases()))
    }

    /// True if it has something to run there.
    #[must_use]
    pub fn has(&self, hook: Hook) -> bool {
        self.hooks.contains(&hook)
    }

    /// Compiles the texts in an interpreter.
    fn load(&self, engine: &Engine) -> Result<Functions, ScriptError> {
        let mut by_hook = [const { None }; HOOKS.len()];
        for (hook, texts) in &self.texts {
            let fault = |at, error: mlua::Error| {
                engine.failed(&error);
                ScriptError { at, hook: *hook, reason: text(&error) }
            };
            let make = engine.entry("load").map_err(|error| fault(0, error))?;
            let chunks = engine.lua.create_table().map_err(|error| fault(0, error))?;
            for (at, text) in texts.iter().enumerate() {
                let before = Call::new(Hook::Load).enter();
                let chunk = engine.limit_memory().and_then(|_bound| {
                    let globals: Table = engine.entry("globals")?.call(())?;
                    let chunk = engine.load(&self.name, text, globals)?;
                    let check = engine.entry("check")?;
                    check.call::<Value>((self.form.name(), chunk))
                });
                before.enter();
                chunks.push(chunk.map_err(|error| fault(at, error))?).map_err(|error| fault(at, error))?;
            }
            let before = Call::new(Hook::Load).enter();
            let made = make.call::<Table>((self.form.name(), hook.name(), chunks, &*self.conf));
            before.enter();
            let made = made.map_err(|error| fault(0, error))?;
            for (hook, place) in HOOKS.iter().zip(&mut by_hook) {
                if let Some(function) = made.raw_get(hook.name()).map_err(|error| fault(0, error))? {
                    *place = Some(function);
                }
            }
        }
        Ok(Functions { engine: engine.number, by_hook })
    }

    /// The function for a hook in this worker.
    fn function(&self, engine: &Engine, hook: Hook) -> mlua::Result<Option<Function>> {
        let mut functions = self.functions.get().filter(|functions| functions.engine == engine.number);
        if functions.is_none() {
            let loaded = self.load(engine).map_err(|error| mlua::Error::runtime(error.reason))?;
            functions = Some(self.functions.put(loaded));
        }
        let at = HOOKS.iter().position(|known| *known == hook);
        Ok(functions.and_then(|functions| functions.by_hook.get(at?)?.clone()))
    }

    /// Runs the script in the phase `rewrite`.
    pub(crate) fn run_first(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.waiting.get(cx).is_some_and(|waiting| waiting.running.hook == Hook::Access) {
            return self.run(cx, Hook::Access);
        }
        let flow = self.run(cx, Hook::Rewrite);
        self.and_early_access(cx, Hook::Rewrite, flow)
    }

    /// Goes on with `access` where it belongs to the phase `rewrite`.
    fn and_early_access(&self, cx: &mut RequestCx<'_>, hook: Hook, flow: Flow) -> Flow {
        match flow {
            Flow::Continue if self.is_early && hook == Hook::Rewrite => self.run(cx, Hook::Access),
            flow => flow,
        }
    }

    /// Runs the script in a request phase: `rewrite` or `access`, the second time after it has waited for the body.
    pub fn run(&self, cx: &mut RequestCx<'_>, hook: Hook) -> Flow {
        if let Some(waiting) = self.waiting.take(cx).filter(|waiting| waiting.running.hook == hook) {
            return self.resume(cx, waiting.running, ());
        }
        let begun = Engine::here().and_then(|engine| {
            let Some(function) = self.function(&engine, hook)? else { return Ok(None) };
            let context = context(&engine, cx)?;
            let thread = engine.thread(&function)?;
            Ok(Some((Running { hook, engine, thread, call: self.begin(hook) }, context)))
        });
        match begun {
            Ok(None) => Flow::Continue,
            Ok(Some((running, context))) => self.resume(cx, running, context),
            Err(error) => self.report(&error),
        }
    }

    /// Goes on with a call until it waits or ends.
    fn resume(&self, cx: &mut RequestCx<'_>, running: Running, values: impl IntoLuaMulti) -> Flow {
        let Running { hook, engine, thread, call } = running;
        let before = call.enter();
        let came = engine.limit_memory().and_then(|_bound| lend(cx, || thread.resume::<MultiValue>(values)));
        let call = before.enter();
        match came {
            Ok(values) if thread.is_resumable() => match wait::wish(&values) {
                Some((wish, flow)) => {
                    self.waiting.put(cx, Waiting { running: Running { hook, engine, thread, call }, wish });
                    flow
                }
                None => self.report(&mlua::Error::runtime("attempt to yield outside of a coroutine")),
            },
            Ok(_) => {
                engine.keep(thread);
                answer(cx, call)
            }
            Err(_) if call.exits => answer(cx, call),
            Err(error) => {
                engine.failed(&error);
                self.report(&error)
            }
        }
    }

    /// The hook of a call that waits.
    pub(crate) fn waits(&self, cx: &RequestCx<'_>) -> Option<Hook> {
        self.waiting.get(cx).map(|waiting| waiting.running.hook)
    }

    /// Goes on with a call that waits, for [`weir_plugin::Plugin::request_io`].
    pub fn wait<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            loop {
                let Some(waiting) = self.waiting.take(cx) else { return Flow::Abort(FAILED) };
                let Waiting { running, wish } = waiting;
                let hook = running.hook;
                let values = match wait::fulfil(&running.engine, &self.services, &wish, io).await {
                    Ok(values) => values,
                    Err(error) => return self.report(&error),
                };
                let flow = self.resume(cx, running, values);
                match self.and_early_access(cx, hook, flow) {
                    Flow::Suspend => {}
                    flow => return flow,
                }
            }
        })
    }

    /// Runs the script before a request to a node.
    pub fn run_before_proxy(&self, cx: &mut impl HookCxMut) -> Flow {
        match self.call(cx, self.begin(Hook::BeforeProxy)) {
            Ok(_) => Flow::Continue,
            Err(error) => self.report(&error),
        }
    }

    /// Runs the script with the head of a response, and asks for its body where the script changes that.
    pub fn run_response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        if self.has(Hook::HeaderFilter) {
            match self.run_head(cx) {
                Flow::Continue => {}
                flow => return flow,
            }
        }
        if self.has(Hook::BodyFilter) {
            cx.filter_body(false);
        }
        Flow::Continue
    }

    /// Runs the script with the head of a response alone.
    pub(crate) fn run_head(&self, cx: &mut ResponseCx<'_>) -> Flow {
        match self.call(cx, self.begin(Hook::HeaderFilter)) {
            Ok(_) => Flow::Continue,
            Err(error) => self.report(&error),
        }
    }

    /// Runs the script with a piece of a response's body.
    pub fn run_body(&self, cx: &mut BodyCx<'_>, piece: &mut Vec<u8>, is_last: bool) -> Flow {
        if !self.has(Hook::BodyFilter) {
            return Flow::Continue;
        }
        let call = Call { piece: std::mem::take(piece), is_last, ..self.begin(Hook::BodyFilter) };
        match self.call(cx, call) {
            Ok(call) => {
                *piece = call.piece;
                Flow::Continue
            }
            Err(error) => self.report(&error),
        }
    }

    /// Runs the script after the end of an exchange.
    pub fn run_log(&self, cx: &mut RequestCx<'_>) {
        if let Err(error) = self.call(cx, self.begin(Hook::Log)) {
            let _ = self.report(&error);
        }
    }

    /// A call that may not wait.
    fn call(&self, cx: &mut impl HookCxMut, call: Call) -> mlua::Result<Call> {
        let engine = Engine::here()?;
        let Some(function) = self.function(&engine, call.hook)? else { return Ok(call) };
        let context = context(&engine, cx)?;
        let _bound = engine.limit_memory()?;
        let before = call.enter();
        let came = lend(cx, || function.call::<()>(context));
        let call = before.enter();
        match came {
            Err(error) if !call.exits => {
                engine.failed(&error);
                Err(error)
            }
            _ => Ok(call),
        }
    }

    /// Logs an error, which refuses the request.
    #[cold]
    fn report(&self, error: &mlua::Error) -> Flow {
        tracing::error!("{}: {}", self.name, text(error));
        Flow::Abort(FAILED)
    }
}

/// Answers a request with what its script has made, where it has made an answer.
fn answer(cx: &mut RequestCx<'_>, call: Call) -> Flow {
    if !call.exits && call.output.is_empty() {
        return Flow::Continue;
    }
    let status = if call.status == 0 { 200 } else { call.status };
    let has_type = call.output.is_empty() || cx.variable(&CONTENT_TYPE).is_some();
    let answer = cx.reply(status);
    let answer = if has_type { answer } else { answer.field("Content-Type", b"text/plain; charset=utf-8") };
    answer.whole_body(call.output).done()
}

/// The table that scripts share on an exchange.
fn context(engine: &Engine, cx: &mut impl HookCxMut) -> mlua::Result<Table> {
    if let Some(context) = CONTEXT.get(cx).filter(|context| context.engine == engine.number) {
        return Ok(context.table.clone());
    }
    let table = engine.new_context()?;
    CONTEXT.put(cx, Context { engine: engine.number, table: table.clone() });
    Ok(table)
}
