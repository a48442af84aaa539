//! What the operator is told of a URL; and that it comes true.
