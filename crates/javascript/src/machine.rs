//! An interpreter with the scripts of one program.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use rquickjs::context::EvalOptions;
use rquickjs::convert::Coerced;
use rquickjs::function::Opt;
use rquickjs::{CatchResultExt, CaughtError, Context, Ctx, Function, Runtime};
use tokio::sync::mpsc;

use crate::engine::{HostRequest, Question};
use crate::program::{Limits, Program};

/// Reasons for a call without a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The script took longer than its budget.
    Time,
    /// The script needed more memory than its budget.
    Memory,
    /// The script threw an error.
    Thrown(String),
    /// Too many calls wait already.
    Busy,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Time => f.write_str("the script took too long"),
            Self::Memory => f.write_str("the script took too much memory"),
            Self::Thrown(text) => f.write_str(text),
            Self::Busy => f.write_str("too many scripts wait to be run"),
        }
    }
}

/// Base64 as Tyk's scripts read it: with and without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// Most bytes of the stack of a script.
const STACK: usize = 256 << 10;
/// Most bytes of one line in the log.
const MOST_LOGGED: usize = 4096;

/// The kind of thing that a call calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A middleware: `new TykJS.TykMiddleware.NewMiddleware({})`.
    Middleware,
    /// A middleware for answers.
    Response,
    /// The function of a virtual endpoint.
    Function,
    /// A handler of events: `new TykJS.TykEventHandlers.NewEventHandler({})`.
    Event,
}

impl Entry {
    /// The function of `tyk.js` that is the way in.
    fn name(self) -> &'static str {
        match self {
            Self::Middleware => "weirMiddleware",
            Self::Response => "weirResponse",
            Self::Function => "weirFunction",
            Self::Event => "weirEvent",
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::Middleware => "middleware",
            Self::Response => "middleware of answers",
            Self::Function => "function",
            Self::Event => "handler of events",
        }
    }
}

/// The way of the running call to whoever makes its requests.
type Host = Rc<RefCell<Option<mpsc::Sender<HostRequest>>>>;

/// An interpreter.
pub(crate) struct Machine {
    context: Context,
    /// Dropped after the context.
    runtime: Runtime,
    deadline: Rc<Cell<Option<Instant>>>,
    host: Host,
    limits: Limits,
}

impl Machine {
    /// An interpreter that has evaluated the scripts.
    pub(crate) fn new(program: &Program) -> Result<Self, String> {
        let failed = |error: rquickjs::Error| format!("the interpreter cannot be made: {error}");
        let runtime = Runtime::new().map_err(failed)?;
        runtime.set_memory_limit(program.limits.memory);
        runtime.set_max_stack_size(STACK);
        let deadline: Rc<Cell<Option<Instant>>> = Rc::default();
        let ends = Rc::clone(&deadline);
        runtime.set_interrupt_handler(Some(Box::new(move || ends.get().is_some_and(|end| Instant::now() >= end))));
        let context = Context::full(&runtime).map_err(failed)?;
        let host = Host::default();
        context.with(|ctx| define(&ctx, &host, &deadline)).map_err(failed)?;
        let machine = Self { context, runtime, deadline, host, limits: program.limits };
        machine.evaluate("tyk.js", include_str!("tyk.js"))?;
        for script in &program.scripts {
            machine.evaluate(&script.name, &script.text).map_err(|error| format!("{}: {error}", script.name))?;
        }
        Ok(machine)
    }

    fn evaluate(&self, name: &str, text: &str) -> Result<(), String> {
        let mut options = EvalOptions::default();
        // The scripts are older than strict mode.
        options.strict = false;
        options.filename = Some(name.replace('\0', " "));
        let run =
            |ctx: Ctx<'_>| ctx.eval_with_options::<(), _>(text, options).catch(&ctx).map_err(|error| thrown(&error));
        self.within(|| self.context.with(run)).map_err(|fault| fault.to_string())
    }

    /// Refuses a name that is no middleware, or no function.
    pub(crate) fn check(&self, entry: Entry, name: &str) -> Result<(), String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.');
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(format!("'{name}' is no name of a {}", entry.noun()));
        }
        let check = |ctx: Ctx<'_>| -> Result<String, Fault> {
            let call = || ctx.globals().get::<_, Function<'_>>(entry.name())?.call((name,));
            call().catch(&ctx).map_err(|error| thrown(&error))
        };
        self.within(|| self.context.with(check)).map(drop).map_err(|fault| fault.to_string())
    }

    /// Calls a middleware or a function with its arguments in JSON; its result in JSON.
    pub(crate) fn call(
        &self,
        (entry, name): (Entry, &str),
        [request, session, config]: &[String; 3],
        host: mpsc::Sender<HostRequest>,
    ) -> Result<String, Fault> {
        *self.host.borrow_mut() = Some(host);
        let run = |ctx: Ctx<'_>| -> Result<String, Fault> {
            let arguments = (name, request.as_str(), session.as_str(), config.as_str());
            let call = || ctx.globals().get::<_, Function<'_>>(entry.name())?.call(arguments);
            call().catch(&ctx).map_err(|error| thrown(&error))
        };
        let result = self.within(|| self.context.with(run));
        *self.host.borrow_mut() = None;
        result
    }

    /// Runs something within the budget of time.
    fn within<T>(&self, run: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        let end = Instant::now() + self.limits.time;
        self.deadline.set(Some(end));
        let result = run();
        self.deadline.set(None);
        match result {
            Err(Fault::Thrown(_)) if Instant::now() >= end => Err(Fault::Time),
            Err(Fault::Thrown(text)) if text.contains("out of memory") || text.contains("llocation failed") => {
                Err(Fault::Memory)
            }
            result => result,
        }
    }

    /// Bytes that the interpreter takes.
    pub(crate) fn bytes(&self) -> u64 {
        u64::try_from(self.runtime.memory_usage().malloc_size).unwrap_or_default()
    }
}

fn thrown(error: &CaughtError<'_>) -> Fault {
    let mut text = match error {
        CaughtError::Exception(exception) => {
            let place = exception.stack().unwrap_or_default();
            let place = place.lines().next().unwrap_or_default().trim().to_owned();
            format!("{} ({place})", exception.message().unwrap_or_default())
        }
        other => other.to_string(),
    };
    text.truncate(text.floor_char_boundary(MOST_LOGGED));
    Fault::Thrown(text)
}

/// The functions that scripts find.
fn define(ctx: &Ctx<'_>, host: &Host, deadline: &Rc<Cell<Option<Instant>>>) -> rquickjs::Result<()> {
    let globals = ctx.globals();
    let logged = |mut text: String| {
        text.truncate(text.floor_char_boundary(MOST_LOGGED));
        tracing::info!(message = "a script says", text);
    };
    let decode = |text: Opt<String>| {
        let decoded = BASE64.decode(text.0.unwrap_or_default()).unwrap_or_default();
        String::from_utf8_lossy(&decoded).into_owned()
    };
    let encode = |text: Opt<String>| BASE64.encode(text.0.unwrap_or_default());
    for name in ["log", "rawlog"] {
        globals.set(name, Function::new(ctx.clone(), logged)?)?;
    }
    for name in ["b64dec", "rawb64dec"] {
        globals.set(name, Function::new(ctx.clone(), decode)?)?;
    }
    globals.set("b64enc", Function::new(ctx.clone(), encode)?)?;
    let bare = |text: Opt<String>| BASE64.encode(text.0.unwrap_or_default()).trim_end_matches('=').to_owned();
    globals.set("rawb64enc", Function::new(ctx.clone(), bare)?)?;
    let asking = || {
        let (host, deadline) = (Rc::clone(host), Rc::clone(deadline));
        move |question: Question| self::ask(&host, deadline.get(), question)
    };
    let ask = asking();
    let http = move |request: String| {
        ask(Question::Http(request)).unwrap_or_else(|text| {
            format!(
                "{{\"Code\":0,\"code\":0,\"Body\":\"{text}\",\"body\":\"{text}\",\"Headers\":{{}},\"headers\":{{}}}}"
            )
        })
    };
    globals.set("TykMakeHttpRequest", Function::new(ctx.clone(), http)?)?;
    let ask = asking();
    let batch = move |batch: String| ask(Question::Batch(batch)).ok().filter(|answer| !answer.is_empty());
    globals.set("TykBatchRequest", Function::new(ctx.clone(), batch)?)?;
    let ask = asking();
    let session = move |key: String, api: Opt<String>| {
        ask(Question::Session(key, api.0.unwrap_or_default())).unwrap_or_else(|_| "{}".to_owned())
    };
    globals.set("TykGetKeyData", Function::new(ctx.clone(), session)?)?;
    let ask = asking();
    let set = move |key: String, session: String, suppress: Opt<Coerced<String>>| {
        let keeps_quota = suppress.0.is_some_and(|suppress| suppress.0 == "1");
        // A failure is logged where it is found, as by Tyk.
        let _ = ask(Question::SetSession { key, session, keeps_quota });
    };
    globals.set("TykSetKeyData", Function::new(ctx.clone(), set)?)?;
    Ok(())
}

/// Asks a question, and waits for its answer as long as the script may run.
fn ask(host: &Host, deadline: Option<Instant>, question: Question) -> Result<String, &'static str> {
    let (Some(host), Some(deadline)) = (host.borrow().clone(), deadline) else {
        return Err("requests are made only while a request is handled");
    };
    let (reply, answer) = sync_channel(1);
    if host.blocking_send(HostRequest { question, reply }).is_err() {
        return Err("the client has gone");
    }
    let left = deadline.saturating_duration_since(Instant::now());
    answer.recv_timeout(left).map_err(|_| "no answer in time")
}
