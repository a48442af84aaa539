// The checks of /docs.
export const docsChecks = [];
