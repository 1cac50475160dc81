//! Panics of kernel bodies become faults instead of text on the terminal.

use std::any::Any;
use std::panic;
use std::sync::Once;

use crate::emulator::context;
use crate::emulator::fault::Place;

static HOOK: Once = Once::new();

/// Installs, once a process, a panic hook that notes place and message of a panic inside a launch and leaves
/// every other panic to the hook that was there before.
pub fn note_quietly() {
    HOOK.call_once(|| {
        // The hook cannot be changed while this thread panics (a launch from a destructor): panics are then
        // printed as well as reported.
        if std::thread::panicking() {
            return;
        }
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !context::is_running() {
                return previous(info);
            }
            let place = info.location().map_or(Place { file: "", line: 0 }, |l| Place {
                // A panic's file name is a literal of the program, but the type does not say so.
                file: String::leak(l.file().to_owned()),
                line: l.line(),
            });
            let message = message(info.payload());
            context::with(|context| context.panicked = Some((place, message)));
        }));
    });
}

/// The text of a panic.
pub fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".to_owned())
}
