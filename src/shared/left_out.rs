//! Rules of a protocol that the proof leaves out, one at a time, to show what happens
//! without it. The product has them all.

#[cfg(test)]
use std::any::Any;
#[cfg(test)]
use std::cell::RefCell;

/// Whether a rule is in force.
#[cfg(not(test))]
pub(crate) const fn has<R: Copy>(_: R) -> bool {
    true
}

#[cfg(test)]
thread_local! {
    static LEFT_OUT: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

/// Whether a rule is in force.
#[cfg(test)]
pub(crate) fn has<R: Copy + PartialEq + 'static>(rule: R) -> bool {
    LEFT_OUT.with_borrow(|left_out| {
        let left_out = left_out.as_ref().and_then(|one| one.downcast_ref());
        left_out != Some(&rule)
    })
}

/// Leaves out this rule, and no other of any protocol, on this thread.
#[cfg(test)]
pub(crate) fn leave_out<R: Copy + PartialEq + 'static>(rule: Option<R>) {
    let rule = rule.map(|rule| Box::new(rule) as Box<dyn Any>);
    LEFT_OUT.set(rule);
}
