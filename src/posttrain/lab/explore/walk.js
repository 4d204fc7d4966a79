// --- the advisor's questions, as a tree that Python has built --------------------------------------------------------

const walk = {
  given: [],

  /** The node for the answers so far: a question or advice. */
  place() {
    return this.given.reduce((place, answer) => {
      const question = data.walk.questions[place.question];
      return data.walk.nodes[place.next[question.answers.findIndex((one) => one.key === answer)]];
    }, data.walk.nodes[data.walk.root]);
  },

  /** The questions asked so far, with their answers. */
  path() {
    const told = [];
    let place = data.walk.nodes[data.walk.root];
    for (const key of this.given) {
      const question = data.walk.questions[place.question];
      const index = question.answers.findIndex((one) => one.key === key);
      told.push({ question, answer: question.answers[index] });
      place = data.walk.nodes[place.next[index]];
    }
    return told;
  },

  address() {
    return this.given.join(".");
  },

  /** The answers in the URL. Invalid ones are dropped. */
  restore(text) {
    this.given = [];
    for (const key of text.split(".").filter(Boolean)) {
      const place = this.place();
      if (place.next && data.walk.questions[place.question].answers.some((one) => one.key === key)) this.given.push(key);
    }
    this.draw();
  },

  go(given) {
    this.given = given;
    this.draw();
    toAddress(this.address());
    at("walk").querySelector("h3").focus();
  },

  draw() {
    const place = this.place();
    const steps = this.path().map(({ question, answer }, index) =>
      node("li", {}, node("span", {}, question.text), node("b", {}, answer.label),
        node("button", { type: "button", className: "quiet", onclick: () => this.go(this.given.slice(0, index)), "aria-label": `Change the answer to: ${question.text}` }, "change")));
    at("walk").replaceChildren(node("ol", { className: "steps", "aria-label": "Your answers" }, steps), place.next ? this.question(place) : this.advice(data.walk.advice[place.advice]));
  },

  question(place) {
    const question = data.walk.questions[place.question];
    const answers = question.answers.map((answer) =>
      node("button", { type: "button", onclick: () => this.go([...this.given, answer.key]) }, node("b", {}, answer.label), node("span", {}, answer.hint)));
    return node("div", { className: "question", role: "group", "aria-labelledby": "question" },
      node("p", { className: "count" }, `Question ${this.given.length + 1}`), node("h3", { id: "question", tabIndex: -1 }, question.text), node("div", { className: "answers" }, answers));
  },

  advice(advice) {
    const told = advice.ranked.map((standing, index) => this.ranked(data.walk.standings[standing], index));
    const first = advice.before.length ? [node("h4", {}, "First"), node("ul", {}, advice.before.map(cited))] : [];
    return node("div", { className: "said" }, node("h3", { tabIndex: -1 }, told.length ? "What the advisor says" : "The advisor recommends none: there is nothing to learn from yet"),
      advice.contradictions.map((text) => node("p", { className: "note" }, node("b", {}, "These goals contradict each other: "), ...cited(text).childNodes)), first,
      node("ol", { className: "advice" }, told), node("p", { className: "command-name" }, "The same on the command line, with more detail:"), node("pre", { className: "command" }, this.command()));
  },

  ranked(standing, index) {
    const show = node("button", { type: "button", className: "quiet", onclick: () => choose({ a: standing.key }) }, "show it above");
    const beside = node("button", { type: "button", className: "quiet", onclick: () => choose({ b: standing.key }) }, "compare with it");
    return node("li", { className: index ? "" : "first" }, node("h4", {}, node("span", { className: "rank" }, index ? `choice ${index + 1}` : "first choice"), cards.get(standing.key).title),
      node("ul", { className: "for", "aria-label": "speaks for it" }, standing.for.map(cited)),
      standing.against.length ? node("ul", { className: "against", "aria-label": "speaks against it" }, standing.against.map(cited)) : "",
      node("div", { className: "buttons" }, show, beside));
  },

  command() {
    return ["posttrain advise", ...this.path().map(({ answer }) => answer.flags)].filter(Boolean).join(" ");
  },
};

/** Format text between backticks as code. */
const coded = (text) => text.split("`").map((piece, place) => (place % 2 ? node("code", {}, piece) : piece));

/** A text with its sources. */
function cited(text) {
  const [said, sources] = data.walk.texts[text];
  return node("li", {}, coded(said), " ", node("small", {}, "(", linked(sources), ")"));
}

begin();
