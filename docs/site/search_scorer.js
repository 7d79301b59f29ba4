/* How the search ranks its results: lessons and the pages of words first, then guides, then functions. */
const FIRST = /^(tutorials\/\d|docs\/terms|lab\/)/;
const LATER = /^(api\/|contributing|changelog)/;

var Scorer = {
  score: ([docname, , , , score]) => score + (FIRST.test(docname) ? 20 : LATER.test(docname) ? -10 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
