// The stop buttons.  The rig's own loop obeys them, whatever becomes of this page.

const UNCONFIRMED = "Unconfirmed until a state frame of the device shows the actuators safe.";
const buttons = { fade: document.getElementById("stop"), now: document.getElementById("stop-now") };

/** Wires both; `say(text)` shows what came of it. */
export function wireStops(say) {
  for (const [how, button] of Object.entries(buttons)) {
    button.addEventListener("click", async () => {
      button.classList.add("asked");
      try {
        const answer = await fetch("api/stop", {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify({ how }),
        });
        const body = await answer.json();
        if (answer.ok) say(`${how === "now" ? "Disarming now" : "Stopping: the command fades out"}. ${UNCONFIRMED}`);
        else say(`Not stopped from here: ${body.error}.`);
      } catch {
        button.classList.remove("asked");
        say("The page's server does not answer. Use `onrig stop` in a terminal, Ctrl-C, or the e-stop.");
      }
    });
  }
}

let told = "";

/** What the device says of the actuators while the run stops: never more than its frames do. */
export function tellActuators(actuators, say) {
  if (!actuators || actuators === told) return;
  told = actuators;
  say(`Stopping. Actuators ${actuators}.`);
}

/** Nothing is left to stop. */
export function disableStops() {
  for (const button of Object.values(buttons)) button.disabled = true;
}
