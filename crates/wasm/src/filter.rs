//! A filter: a module of a file, compiled once for the process, and its machines in the workers.
#![allow(clippy::disallowed_types, reason = "only who checks a configuration locks, and no worker does")]

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use wasmi::{CompilationMode, Config, Engine, ExternType, Linker, Module, Val};
use weir_plugin::Slot;

use crate::host::{Cx, Host, Status};
use crate::vm::Vm;
use crate::{functions, wasi};

/// The shortest time between two starts of a filter's machine in a worker.
const PAUSE: Duration = Duration::from_millis(100);

static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    let mut config = Config::default();
    config.consume_fuel(true).compilation_mode(CompilationMode::Eager);
    Engine::new(&config)
});

/// A filter.
pub struct Filter {
    pub(crate) name: &'static str,
    pub(crate) module: Module,
    pub(crate) linker: Linker<Host>,
    machine: Slot<Machine>,
    /// The machine in which configurations are tried, before they are in force.
    trial: Mutex<Option<Vm>>,
}

/// The machine of a worker.
struct Machine {
    vm: Rc<RefCell<Vm>>,
    started: Instant,
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filter").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Filter {
    /// Compiles a module.
    ///
    /// # Errors
    /// The bytes are no module, or not one of proxy-wasm 0.2; it calls functions that nobody knows.
    pub fn load(name: &'static str, bytes: &[u8]) -> Result<Self, String> {
        let module = Module::new(&ENGINE, bytes).map_err(|error| format!("no module of WebAssembly: {error}"))?;
        let has = |name: &str| module.get_export(name).is_some();
        if !has("proxy_abi_version_0_2_0") && !has("proxy_abi_version_0_2_1") {
            let other = module.exports().find(|export| export.name().starts_with("proxy_abi_version_"));
            return Err(match other {
                Some(other) => format!("expected the ABI of proxy-wasm 0.2.0 or 0.2.1, found {}", other.name()),
                None => "expected a filter of proxy-wasm 0.2: it exports no proxy_abi_version_0_2_1".to_owned(),
            });
        }
        let linker = linker(&module)?;
        Ok(Self { name, module, linker, machine: Slot::default(), trial: Mutex::default() })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// True if it exports a function of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.module.get_export(name).is_some()
    }

    /// Gives a machine a configuration, to see whether it takes it.
    ///
    /// # Errors
    /// The module does not start, or does not take the configuration.
    pub fn try_configuration(&self, conf: &str) -> Result<(), String> {
        let conf = Arc::from(conf.as_bytes());
        let mut trial = self.trial.lock().unwrap_or_else(PoisonError::into_inner);
        // A machine is dear to start, and a filter may stand on thousands of routes. A refusal counts from a new one alone.
        let kept = trial.take().and_then(|mut vm| vm.configure(&conf).ok().map(|root| (vm, root)));
        let (mut vm, root) = match kept {
            Some(taken) => taken,
            None => {
                let mut vm = Vm::start(self)?;
                let root = vm.configure(&conf)?;
                (vm, root)
            }
        };
        if vm.close(root).is_ok() {
            *trial = Some(vm);
        }
        Ok(())
    }

    /// This worker's machine. After one that has failed, a new one is started, at most ten times a second.
    #[allow(clippy::disallowed_methods, reason = "only where a machine has failed")]
    pub(crate) fn vm(&self) -> Result<Rc<RefCell<Vm>>, String> {
        if let Some(machine) = self.machine.get() {
            let is_dead = machine.vm.try_borrow().is_ok_and(|vm| vm.is_dead);
            if !is_dead {
                return Ok(Rc::clone(&machine.vm));
            }
            if machine.started.elapsed() < PAUSE {
                return Err("the filter has failed a moment ago".to_owned());
            }
        }
        let vm = Rc::new(RefCell::new(Vm::start(self)?));
        self.machine.put(Machine { vm: Rc::clone(&vm), started: Instant::now() });
        Ok(vm)
    }
}

/// The functions that the module imports.
fn linker(module: &Module) -> Result<Linker<Host>, String> {
    let mut linker = Linker::new(module.engine());
    let text = |error: wasmi::Error| error.to_string();
    functions::add(&mut linker).map_err(text)?;
    wasi::add(&mut linker).map_err(text)?;
    for import in module.imports() {
        let (from, name) = (import.module(), import.name());
        let ExternType::Func(ty) = import.ty() else {
            return Err(format!("it imports {from}.{name}, which is no function"));
        };
        let code = match from {
            wasi::MODULE => Some(wasi::NO_SYSTEM),
            functions::MODULE if name.starts_with("proxy_") => Some(Status::Unimplemented as i32),
            _ => None,
        };
        let told = name.to_owned();
        let absent = move |cx: Cx<'_>, _: &[Val], results: &mut [Val]| {
            tracing::warn!("{}: {told} is not supported", cx.data().name);
            results.iter_mut().for_each(|result| *result = Val::I32(code.unwrap_or_default()));
            Ok(())
        };
        // A function that is there cannot be defined a second time.
        let is_absent = linker.func_new(from, name, ty.clone(), absent).is_ok();
        if is_absent && code.is_none() {
            return Err(format!("it imports {from}.{name}, which is no function of proxy-wasm 0.2"));
        }
    }
    Ok(linker)
}
