//! Threads that run scripts.

use std::collections::HashMap;
use std::collections::hash_map;
use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread;

use tokio::sync::{mpsc, oneshot};

use crate::machine::{Entry, Fault, Machine};
use crate::program::Program;

/// A call of a middleware or of a function.
#[derive(Debug)]
pub struct Call {
    /// The program.
    pub program: Arc<Program>,
    /// Kind of the thing that is called.
    pub entry: Entry,
    /// Its global name.
    pub name: String,
    /// Request, session and configuration in JSON.
    pub arguments: [String; 3],
    /// The way to whoever answers the script's questions.
    pub host: mpsc::Sender<HostRequest>,
}

/// A question of a script, which waits for the answer.
#[derive(Debug)]
pub struct HostRequest {
    /// The question.
    pub question: Question,
    /// Takes the answer in JSON.
    pub reply: SyncSender<String>,
}

/// A question of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// A request over HTTP, in JSON (`TykMakeHttpRequest`).
    Http(String),
    /// Several requests over HTTP, in JSON (`TykBatchRequest`). An empty answer: it is no batch.
    Batch(String),
    /// The session of a key, and the id of an API (`TykGetKeyData`).
    Session(String, String),
    /// A change of a key's session.
    SetSession {
        /// The key.
        key: String,
        /// The session in JSON.
        session: String,
        /// True where the quota goes on.
        keeps_quota: bool,
    },
}

/// Calls that wait for a thread, at most.
const QUEUE: usize = 1024;
/// Most threads: scripts wait for requests that they make.
const MOST_THREADS: usize = 16;

struct Job {
    call: Call,
    reply: oneshot::Sender<Result<String, Fault>>,
}

/// Threads that run scripts, which are started by the first call.
pub struct Engine {
    jobs: SyncSender<Job>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    /// The engine of the process.
    pub fn global() -> &'static Self {
        static ENGINE: OnceLock<Engine> = OnceLock::new();
        ENGINE.get_or_init(|| {
            let (jobs, queue) = sync_channel(QUEUE);
            let queue = Arc::new(Mutex::new(queue));
            let cores = thread::available_parallelism().map_or(4, usize::from);
            for number in 0..cores.clamp(4, MOST_THREADS) {
                let queue = Arc::clone(&queue);
                let started = thread::Builder::new().name(format!("script-{number}")).spawn(move || work(&queue));
                if let Err(error) = started {
                    tracing::error!(%error, "a thread for scripts cannot be started");
                }
            }
            Self { jobs }
        })
    }

    /// Starts a call.
    ///
    /// # Errors
    /// Too many calls wait already.
    pub fn call(&self, call: Call) -> Result<oneshot::Receiver<Result<String, Fault>>, Fault> {
        let (reply, outcome) = oneshot::channel();
        self.jobs.try_send(Job { call, reply }).map_err(|_| Fault::Busy)?;
        Ok(outcome)
    }
}

/// The interpreters of a thread, by the numbers of their programs.
type Machines = HashMap<u64, (Weak<Program>, Machine)>;

fn work(queue: &Mutex<Receiver<Job>>) {
    let mut machines = Machines::new();
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { call, reply }) = job else { return };
        if reply.is_closed() {
            continue;
        }
        machines.retain(|_, (program, _)| program.strong_count() > 0);
        let outcome = run(&mut machines, call);
        // Whoever has asked may have gone.
        let _ = reply.send(outcome);
    }
}

fn run(machines: &mut Machines, call: Call) -> Result<String, Fault> {
    let Call { program, entry, name, arguments, host } = call;
    let (_, machine) = match machines.entry(program.number) {
        hash_map::Entry::Occupied(held) => held.into_mut(),
        hash_map::Entry::Vacant(free) => {
            let machine = Machine::new(&program).map_err(Fault::Thrown)?;
            free.insert((Arc::downgrade(&program), machine))
        }
    };
    let result = machine.call((entry, &name), &arguments, host);
    let is_full = machine.bytes() > program.limits.memory as u64 / 2;
    // The remains of a script that was ended are not relied on, and the memory that a script piles up is dropped.
    if matches!(result, Err(Fault::Time | Fault::Memory)) || is_full {
        machines.remove(&program.number);
    }
    result
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::{Call, Engine, Question};
    use crate::machine::{Entry, Fault};
    use crate::program::{Limits, Program, Script};

    const LIMITS: Limits = Limits { time: Duration::from_millis(300), memory: 8 << 20 };

    fn script(body: &str) -> Vec<Script> {
        let text = format!(
            "var m = new TykJS.TykMiddleware.NewMiddleware({{}});\nm.NewProcessRequest(function (request, session, config) {{\n{body}\nreturn m.ReturnData(request, session.meta_data);\n}});"
        );
        vec![Script { name: "m.js".to_owned(), text }]
    }

    fn call(body: &str) -> Result<String, Fault> {
        let program = Program::new(script(body), Entry::Middleware, &["m".to_owned()], LIMITS).expect("a program");
        let (host, mut requests) = mpsc::channel(1);
        let arguments = ["{\"Body\":\"aGk=\",\"SetHeaders\":{}}", "{\"meta_data\":{\"a\":\"b\"}}", "{\"APIID\":\"x\"}"];
        let call = Call {
            program,
            entry: Entry::Middleware,
            name: "m".to_owned(),
            arguments: arguments.map(str::to_owned),
            host,
        };
        let outcome = Engine::global().call(call).expect("a thread");
        while let Some(request) = requests.blocking_recv() {
            let answer = match request.question {
                Question::Http(text) => format!("{{\"Body\":{text}}}"),
                Question::Batch(text) => text,
                Question::Session(key, api) => format!("{{\"key\":\"{key}\",\"api\":\"{api}\"}}"),
                Question::SetSession { key, session, keeps_quota } => {
                    assert_eq!((&*key, &*session, keeps_quota), ("k", "{}", true));
                    String::new()
                }
            };
            request.reply.send(answer).expect("a script that waits");
        }
        outcome.blocking_recv().expect("an outcome")
    }

    #[test]
    fn scripts_change_requests() {
        let body = "request.SetHeaders['X'] = request.Body + config.APIID + session.meta_data.a + rawb64enc('?'); request.Body = 'ho';";
        let expected =
            "{\"Request\":{\"Body\":\"aG8=\",\"SetHeaders\":{\"X\":\"hixbPw\"}},\"SessionMeta\":{\"a\":\"b\"}}";
        assert_eq!(call(body), Ok(expected.to_owned()));
        let asked =
            call("request.SetHeaders.A = JSON.parse(TykMakeHttpRequest('7')).Body; log('done');").expect("a result");
        assert!(asked.contains("\"SetHeaders\":{\"A\":7}"), "{asked}");
        let body = "var s = JSON.parse(TykGetKeyData('k', 'a')); request.SetHeaders.A = s.key + s.api + TykSetKeyData('k', '{}', 1) + TykBatchRequest('x') + TykBatchRequest('');";
        let told = call(body).expect("a result");
        assert!(told.contains("\"SetHeaders\":{\"A\":\"kaundefinedxundefined\"}"), "{told}");
    }

    #[test]
    fn scripts_are_held_to_their_budgets() {
        assert_eq!(call("for (;;) {}"), Err(Fault::Time));
        assert_eq!(call("var all = []; for (;;) { all.push('x'.repeat(100000) + all.length); }"), Err(Fault::Memory));
        let thrown = call("throw new Error('no');").expect_err("a fault");
        assert!(matches!(&thrown, Fault::Thrown(text) if text.starts_with("no (")), "{thrown:?}");
        let deep = call("function f(n) { return f(n + 1) + 1; } f(0);").expect_err("a fault");
        assert!(matches!(&deep, Fault::Thrown(_)), "{deep:?}");
        // The thread goes on.
        assert!(call("").is_ok());
    }

    #[test]
    fn programs_are_checked_when_they_are_made() {
        let made = |text: &str, name: &str| {
            let scripts = vec![Script { name: "a.js".to_owned(), text: text.to_owned() }];
            Program::new(scripts, Entry::Middleware, &[name.to_owned()], LIMITS).map(drop)
        };
        for (text, name, fault) in [
            ("var m = {", "m", "a.js: "),
            ("", "m", "is not defined"),
            ("var m = 1;", "m", "m is no middleware"),
            ("", "a b", "'a b' is no name of a middleware"),
            ("while (true) {}", "m", "a.js: the script took too long"),
        ] {
            let error = made(text, name).expect_err("a fault");
            assert!(error.contains(fault), "{error}");
        }
        assert_eq!(made("const m = new TykJS.TykMiddleware.NewMiddleware({});", "m"), Ok(()));
    }
}
