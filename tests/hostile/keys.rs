//! Provider keys: quarantine that one client could cause, and what origins echo.

mod quarantine;
