//! A filter: a module of a file, compiled once for the process, and its machines in the workers.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
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
        Ok(Self { name, module, linker, machine: Slot::default() })
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

    /// Starts a machine and gives it a configuration, to see whether it takes it.
    ///
    /// # Errors
    /// The module does not start, or does not take the configuration.
    pub fn try_configuration(&self, conf: &str) -> Result<(), String> {
        Vm::start(self)?.configure(&Arc::from(conf.as_bytes())).map(|_| ())
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
    let known: Vec<(&str, &str)> = known().collect();
    for import in module.imports() {
        let (from, name) = (import.module(), import.name());
        if known.contains(&(from, name)) {
            continue;
        }
        let ExternType::Func(ty) = import.ty() else {
            return Err(format!("it imports {from}.{name}, which is no function"));
        };
        let code = match from {
            wasi::MODULE => wasi::NO_SYSTEM,
            functions::MODULE if name.starts_with("proxy_") => Status::Unimplemented as i32,
            _ => return Err(format!("it imports {from}.{name}, which is no function of proxy-wasm 0.2")),
        };
        let told = name.to_owned();
        let absent = move |cx: Cx<'_>, _: &[Val], results: &mut [Val]| {
            tracing::warn!("{}: {told} is not supported", cx.data().name);
            results.iter_mut().for_each(|result| *result = Val::I32(code));
            Ok(())
        };
        linker.func_new(from, name, ty.clone(), absent).map_err(|error| error.to_string())?;
    }
    Ok(linker)
}

/// The functions that are there, with their modules.
fn known() -> impl Iterator<Item = (&'static str, &'static str)> {
    let of_gateway = functions::NAMES.into_iter().map(|name| (functions::MODULE, name));
    of_gateway.chain(wasi::NAMES.into_iter().map(|name| (wasi::MODULE, name)))
}
