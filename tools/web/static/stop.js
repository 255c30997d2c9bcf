// The stop buttons.  The rig's loop obeys them even if this page dies.

const UNCONFIRMED = "Unconfirmed until a state frame of the device shows that the actuators are safe.";
const buttons = { fade: document.getElementById("stop"), now: document.getElementById("stop-now") };

/** Connects both buttons; `say(text)` shows the result. */
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
        if (answer.ok) say(`${how === "now" ? "Disarming now" : "Stopping: the command is fading out"}. ${UNCONFIRMED}`);
        else say(`Not stopped from here: ${body.error}.`);
      } catch {
        button.classList.remove("asked");
        say("The page's server does not answer. Use `onrig stop` in a terminal, Ctrl-C, or the e-stop.");
      }
    });
  }
}

let told = "";

/** State of the actuators while the run stops, as confirmed by the device's frames. */
export function tellActuators(actuators, say) {
  if (!actuators || actuators === told) return;
  told = actuators;
  say(`Stopping. Actuators ${actuators}.`);
}

/** Disables the buttons after the run. */
export function disableStops() {
  for (const button of Object.values(buttons)) button.disabled = true;
}
